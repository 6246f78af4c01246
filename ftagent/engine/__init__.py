"""The engine: knows no HTTP, no terminal and no agent. Import `engine.api` for its face without torch."""

"""Measures servers that speak OpenAI's text completions; `peers.py` is the command. Standard library only."""

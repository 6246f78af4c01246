"""Scripts that produce the figures of docs/performance.md; run them from the repository's root."""

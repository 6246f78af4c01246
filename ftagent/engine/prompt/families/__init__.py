"""The reply forms of model families, one table per file."""

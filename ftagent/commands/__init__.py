"""One module per command, each with its click command as `command`; `ftagent.cli` loads them by name."""

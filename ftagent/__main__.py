"""`python -m ftagent` is the `ftagent` command."""

from __future__ import annotations

from ftagent.cli import main

if __name__ == "__main__":
    main()

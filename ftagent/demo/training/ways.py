"""Tables of short texts, written compactly: alternatives with a bar between them."""

from __future__ import annotations

import functools


@functools.cache
def ways(table: str) -> tuple[str, ...]:
    """The alternatives of `table`, split at `|`; line breaks and runs of spaces count as one space."""
    return tuple(" ".join(part.split()) for part in table.split("|"))

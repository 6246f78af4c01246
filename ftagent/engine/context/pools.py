"""What reuse needs of the pools that hold keys, values and states. Knows no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Pages(Protocol):
    """What is needed of a KV page pool (`context.pages.PagePool`)."""

    page_size: int
    total: int
    page_bytes: int

    @property
    def free_count(self) -> int: ...

    def allocate(self, n: int, after: int | None = None) -> list[int]: ...

    def release(self, pages: Sequence[int], /) -> None: ...

    def retain(self, pages: Sequence[int], /) -> None: ...

    def references(self, page: int, /) -> int: ...

    def check_integrity(self) -> None: ...


class States(Protocol):
    """What is needed of a pool of recurrent states (`context.recurrent.StatePool`).

    `slot_bytes` 0: the model has no recurrent state, and snapshots hold nothing. `inside`: a step keeps the
    states at places within its chunks (`chunk.Chunk.keep`), so that chunks need not end there.
    """

    total: int
    slot_bytes: int

    @property
    def inside(self) -> bool: ...

    @property
    def free_count(self) -> int: ...

    def allocate(self) -> int: ...

    def release(self, slot: int, /) -> None: ...

    def snapshot(self, slot: int, /) -> Any:
        """A copy of the state in `slot`; None where there is no room for it."""
        ...

    def take(self, slot: int, position: int, /) -> Any:
        """What the last step has kept of `slot` behind `position` tokens; None when there was no room."""
        ...

    def restore(self, slot: int, snapshot: Any, /) -> None: ...

    def check_integrity(self) -> None: ...

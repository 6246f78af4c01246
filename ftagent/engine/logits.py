"""What a step hands to sampling: whole rows of logits, or their best few where those are enough.

A device keeps its logits until somebody asks for a whole row: bringing 150,000 numbers over the link and
looking for the best of them costs more than a token of a small model. Knows numpy rows and no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

BEST = 64
"""How many candidates a device keeps of each row."""


class Best(NamedTuple):
    """The largest logits of a row: `ids` in ascending order, `values` float32 beside them."""

    ids: Ids
    values: Row


class StepLogits(Protocol):
    """Logits after each chunk that asked for them, in the order of the chunks."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """float32 [vocab], the caller's to overwrite."""
        ...

    def best(self, index: int) -> Best | None:
        """The BEST largest, or None where only whole rows are kept."""
        ...


class Pending(Protocol):
    """A step that has been handed to the device."""

    def wait(self) -> StepLogits: ...


class WholeRows:
    """Rows that are in host memory anyway."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        found: Row = self._rows[index]
        return found

    def best(self, index: int) -> Best | None:
        return None


class Later:
    """A step of a runner without a device: it is computed when somebody waits for it.

    `step` gives a tensor, float32 [rows, vocab].
    """

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step

    def wait(self) -> WholeRows:
        return WholeRows(self._step().numpy(force=True))

"""What a request carries from token to token beside its pages: one slot per running request, and snapshots.

That is the recurrent state of linear-attention layers, and the last keys and values of window layers. Neither
can be cut back to an earlier token, so whoever wants to return to one keeps a snapshot; it holds all of it or
is not there. Knows no requests and no model; the layers read and write the tensors of a slot in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ftagent.engine.context.pages import PoolFull
from ftagent.engine.context.windows import WindowRings, WindowShape


class StateShape(NamedTuple):
    """Linear layers; convolution columns kept x channels; value heads x key size x value size."""

    layers: int = 0
    conv_columns: int = 0
    conv_channels: int = 0
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def slot_bytes(self) -> int:
        recurrent = self.heads * self.key_dim * self.value_dim
        return 4 * self.layers * (self.conv_columns * self.conv_channels + recurrent)


class StateSnapshot(NamedTuple):
    """A copy of one slot: conv [layers, columns, channels], recurrent [layers, heads, key_dim, value_dim],
    both float32, and the rings of its window layers [layers, planes, window, size].

    Treat as immutable: `restore` copies out of it and nothing writes into it.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor
    window: torch.Tensor

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self)


class StatePool:
    """Slots 0..total-1. `conv` [layers, total, columns, channels], `recurrent` [layers, total, heads, dk,
    dv]; `windows` in `dtype`.
    """

    def __init__(
        self,
        total: int,
        shape: StateShape | None = None,
        device: torch.device | None = None,
        window: WindowShape | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.total = total
        self.shape = shape or StateShape()
        layers, columns, channels, heads, key_dim, value_dim = self.shape
        self.conv = torch.zeros(layers, total, columns, channels, device=device)
        self.recurrent = torch.zeros(layers, total, heads, key_dim, value_dim, device=device)
        self.windows = WindowRings(window or WindowShape(), total, dtype, device)
        self.slot_bytes = self.shape.slot_bytes + self.windows.shape.slot_bytes(dtype)
        self._free = list(range(total))[::-1]
        self._held: set[int] = set()

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def inside(self) -> bool:
        """See `pools.States`."""
        return False

    def allocate(self) -> int:
        """Take a slot with a zero state and empty windows. Raises PoolFull."""
        if not self._free:
            raise PoolFull("recurrent state", 1, 0)
        slot = self._free.pop()
        self._held.add(slot)
        self.conv[:, slot].zero_()
        self.recurrent[:, slot].zero_()
        return slot

    def release(self, slot: int) -> None:
        assert slot in self._held, f"state slot {slot} is not held"
        self._held.remove(slot)
        self._free.append(slot)

    def snapshot(self, slot: int) -> Any:
        """Copy the state of a held slot: a StateSnapshot."""
        assert slot in self._held, f"state slot {slot} is not held"
        parts = (self.conv[:, slot], self.recurrent[:, slot], self.windows.stored[:, slot])
        return StateSnapshot(*(part.clone() for part in parts))

    def restore(self, slot: int, snapshot: Any) -> None:
        """Copy `snapshot` into a held slot."""
        assert slot in self._held, f"state slot {slot} is not held"
        self.conv[:, slot].copy_(snapshot.conv)
        self.recurrent[:, slot].copy_(snapshot.recurrent)
        self.windows.stored[:, slot].copy_(snapshot.window)

    def keep(self, layer: int, slot: int, position: int) -> None:
        """A linear layer of a step has brought `slot` to `position`, where its chunk is to keep it."""
        raise AssertionError("this pool keeps no states inside a chunk")

    def take(self, slot: int, position: int) -> Any:
        """See `pools.States`."""
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError with the numbers when free + held is not total or a slot is in both."""
        free = set(self._free)
        assert len(free) == len(self._free), "a state slot is free twice"
        assert not free & self._held, f"state slots both free and held: {sorted(free & self._held)}"
        assert len(free) + len(self._held) == self.total, f"{len(free)=} {len(self._held)=} {self.total=}"

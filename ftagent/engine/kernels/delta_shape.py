"""The shape of a gated delta net, without torch."""

from __future__ import annotations

from typing import NamedTuple


class DeltaShape(NamedTuple):
    """Heads, sizes of their vectors, width of the convolution, eps of the gated norm."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    eps: float

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v together."""
        return 2 * self.keys + self.values

    @property
    def width(self) -> int:
        """Columns of the projection: q | k | v | z | b | a."""
        return self.channels + self.values + 2 * self.value_heads

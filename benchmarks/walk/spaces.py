"""How the hidden vector is divided, and how long it is at each layer.

route     what the token says about routing, read by all routers, written only by the embedding
pointer   a code word of the id that follows, read by the output projection, written only by the embedding
constant  1 in every token: popularity of experts
noise     a few dimensions per layer, written by the experts of the layer before, read by that router alone
free      the rest: random, and what attention and experts write
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.walk.shapes import Shape

GROWTH = 0.5  # variance that all layers together add to a free dimension, which begins at 1
FAINT = 2.0**-10  # weights that would disturb a protected part are this small instead of zero


@dataclass(frozen=True, slots=True)
class Spaces:
    """Sizes of the parts, in the order route, pointer, constant, noise, free."""

    hidden: int
    layers: int
    route: int
    pointer: int
    noise: int  # per layer

    @property
    def pointer_at(self) -> slice:
        return slice(self.route, self.route + self.pointer)

    @property
    def clean(self) -> int:
        """Dimensions [0, clean) are route and pointer: known exactly, whatever the layers compute."""
        return self.route + self.pointer

    @property
    def constant_at(self) -> int:
        return self.clean

    def noise_at(self, layer: int) -> slice:
        start = self.clean + 1 + layer * self.noise
        return slice(start, start + self.noise)

    @property
    def free_from(self) -> int:
        return self.clean + 1 + self.layers * self.noise

    def rms(self, layer: int) -> float:
        """Expected root mean square of the residual at the router of `layer`; at `layers`, of the end."""
        filled = min(layer + 1, self.layers) * self.noise
        grown = 1 + GROWTH * min(2 * layer + 1, 2 * self.layers) / (2 * self.layers)
        square = self.clean + 1 + filled + (self.hidden - self.free_from) * grown
        return float((square / self.hidden) ** 0.5)

    def added(self) -> float:
        """Standard deviation that each of the 2 * layers mixers and MLPs writes to a free dimension."""
        return float((GROWTH / (2 * self.layers)) ** 0.5)


def divide(shape: Shape) -> Spaces:
    """The division of a shape's hidden vector. Raises ValueError when it is too small for its layers."""
    route, pointer = (64, 128) if shape.hidden >= 1024 else (24, 64)
    noise = min(16, (shape.hidden // 2 - route - pointer - 1) // shape.layers)
    if noise < 4:
        raise ValueError(f"a hidden size of {shape.hidden} has no room for {shape.layers} layers")
    return Spaces(shape.hidden, shape.layers, route, pointer, noise)

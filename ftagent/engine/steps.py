"""What a loaded model looks like to those who run it.

`runner.Runner` has this face on the CPU, `device.runner.DeviceRunner` on a GPU. Knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ftagent.engine.api import ModelInfo
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.tiers import Contents
from ftagent.engine.logits import Pending
from ftagent.engine.options import Mode
from ftagent.engine.stats import ExpertStats

if TYPE_CHECKING:
    import torch

    from ftagent.engine.context.keeping import Kept
    from ftagent.engine.context.pages import PagePool
    from ftagent.engine.context.pools import Pages, States
    from ftagent.engine.context.recurrent import StatePool


class Experts(Protocol):
    """The routed experts of all layers. `slots` and `experts` count experts of all layers together."""

    @property
    def mode(self) -> Mode: ...

    @property
    def slots(self) -> int: ...

    @property
    def slot_bytes(self) -> int: ...

    @property
    def experts(self) -> int: ...

    @property
    def resident(self) -> int: ...

    def stats(self) -> ExpertStats: ...

    def heat(self) -> Sequence[Sequence[int]]:
        """How often each expert has been used lately, [layers][experts]. Between steps."""
        ...

    def check_integrity(self) -> None: ...


class Steps(Protocol):
    """Runs steps. Not thread-safe: one thread calls it."""

    @property
    def kv(self) -> Pages: ...

    @property
    def recurrent(self) -> States: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def kept(self) -> Kept:
        """How much may be kept of prompts."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens that a step is best given, unless the user says otherwise."""
        ...

    @property
    def experts(self) -> Experts | None: ...

    def launch(self, chunks: Sequence[Chunk], /) -> Pending: ...

    def copy_page(self, source: int, target: int, /) -> None: ...

    def close(self) -> None:
        """Give back threads and registered memory. No step may run or follow. May be called twice."""
        ...


class StoredContents(Contents, Protocol):
    """What pages and states hold, of some dtype."""

    @property
    def dtype(self) -> torch.dtype: ...


class LoadedModel(Steps, Protocol):
    """What `load.load_runner` gives, whatever the device."""

    @property
    def kv(self) -> PagePool: ...

    @property
    def recurrent(self) -> StatePool: ...

    @property
    def contents(self) -> StoredContents: ...

    def step(self, chunks: Sequence[Chunk], /) -> torch.Tensor:
        """float32 [chunks with want_logits, vocab], in the order of the chunks."""
        ...

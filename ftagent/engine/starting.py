"""Stands for an engine until its model is loaded: says how far that is, and refuses work with it.

A gateway can thereby listen, and answer /health, from the start of the process on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ftagent.conversation import Conversation
from ftagent.engine.api import Engine, GenerateRequest, Health, LoadState, ModelInfo
from ftagent.engine.stats import Snapshot
from ftagent.errors import EngineStopped
from ftagent.events import Event


class StartingEngine:
    """An `api.Engine` that becomes another one with `ready`. Everything but `health`, asked for before,
    raises EngineStopped.
    """

    def __init__(self) -> None:
        self._inner: Engine | None = None
        self._state = LoadState("checking")

    def tell(self, state: LoadState) -> None:
        """Take note of how far loading is: a `LoadProgress`."""
        self._state = state

    def ready(self, engine: Engine) -> None:
        """From now on this is `engine`."""
        self._inner = engine

    @property
    def loading(self) -> LoadState | None:
        """How far loading is; None when it is over."""
        return self._state if self._inner is None else None

    @property
    def health(self) -> Health:
        return "loading" if self._inner is None else self._inner.health

    @property
    def model(self) -> ModelInfo:
        return self._engine().model

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """See `api.Engine.generate`."""
        return self._engine().generate(request)

    async def count_tokens(self, conversation: Conversation) -> int:
        """See `api.Engine.count_tokens`."""
        return await self._engine().count_tokens(conversation)

    def stats(self) -> Snapshot:
        """See `api.Engine.stats`."""
        return self._engine().stats()

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self._inner is not None:
            self._inner.close()

    def _engine(self) -> Engine:
        if self._inner is None:
            done, total = self._state.done, self._state.total
            how_far = f" ({done * 100 // total} % of the weights are read)" if total else ""
            raise EngineStopped(f"the model is still being loaded{how_far}; try again soon")
        return self._inner

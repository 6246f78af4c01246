"""One prompt and the answer that is coming in: its blocks, its times, how it ended. Knows no widget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ftagent.answer import Reply
from ftagent.conversation import Thinking
from ftagent.errors import FtError
from ftagent.events import Event, Progress, TextDelta, ThinkingDelta
from ftagent.tui.figures import TurnFigures


@dataclass(slots=True, eq=False)
class Turn:
    """Times are seconds of `clock`, a monotonic one. `error` is why there is no answer at all."""

    prompt: str
    clock: Callable[[], float] = time.monotonic
    reply: Reply = field(default_factory=Reply)
    error: FtError | None = None
    stopped: bool = False
    progress: Progress | None = None
    started: float = field(init=False)
    first_token: float | None = field(init=False, default=None)
    thinking_ended: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def add(self, event: Event) -> None:
        if self.stopped:  # what still trickles in after the user stopped is not part of the answer
            return
        if isinstance(event, Progress):
            self.progress = event
        elif self.first_token is None and isinstance(event, ThinkingDelta | TextDelta):
            self.first_token = self.clock()
        if self.thinking and not isinstance(event, ThinkingDelta):
            self.thinking_ended = self.clock()
        self.reply.add(event)

    @property
    def thinking(self) -> bool:
        """The newest block is thinking, and more of it may come."""
        blocks = self.reply.blocks
        return bool(blocks) and isinstance(blocks[-1], Thinking) and self.thinking_ended is None

    @property
    def thinking_s(self) -> float | None:
        """How long it thought, or has thought so far; None before it does."""
        if self.first_token is None or not any(isinstance(block, Thinking) for block in self.reply.blocks):
            return None
        return (self.thinking_ended or self.clock()) - self.first_token

    @property
    def figures(self) -> TurnFigures:
        first = self.first_token - self.started if self.first_token is not None else None
        return TurnFigures(first, self.reply.finished.usage if self.reply.finished else None)

    def thinking_title(self) -> str:
        """The line that stands for the folded thinking. Tokens are known only when the reply is complete."""
        if self.thinking and not self.stopped:
            return f"Thinking… {int(self.thinking_s or 0)} s"
        title = f"Thought for {self.thinking_s or 0:.1f} s"
        tokens = self.reply.finished.usage.reasoning_tokens if self.reply.finished else 0
        return f"{title}, {tokens:,} tokens" if tokens else title

    def waiting_line(self) -> str:
        """What to show before the first token."""
        if self.progress is None or self.progress.phase == "queued":
            return f"waiting… {int(self.clock() - self.started)} s"
        return f"reading the prompt… {self.progress.done:,} of {self.progress.total:,} tokens"

    def closing_line(self) -> str:
        """What stands under the answer when it is over."""
        if self.error is not None:
            return f"✕ {self.error}"
        if remark := self.reply.remark():
            return f"■ {remark}"
        usage = self.figures.usage
        if usage is None:
            return ""
        first = self.figures.first_token_s
        timing = f"  first token {first:.2f} s" if first is not None else ""
        return (
            f"{usage.prompt_tokens:,} in ({usage.cached_tokens:,} cached)  "
            f"{usage.completion_tokens:,} out{timing}"
        )

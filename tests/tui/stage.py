"""A chat app on a scripted engine under Pilot, and the few looks at it that the tests share."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest
from ftagent.events import Progress, TextDelta, Usage
from ftagent.sessions import Session, SessionStore
from ftagent.tui.chat import ChatApp
from ftagent.tui.past import PastAnswer
from ftagent.tui.transcript import Answer, AnswerText, Remark, UserPrompt
from ftagent.tui.widgets import Footer
from tests.support.chat_runner import script_for
from tests.support.scripted import Script, ScriptedEngine

FOREVER = 3600.0
USAGE = Usage(10, 2)


def conversation(request: GenerateRequest) -> Conversation:
    assert isinstance(request.prompt, Conversation)
    return request.prompt


def partial(text: str) -> Callable[[GenerateRequest], Script]:
    """Says `text` at once and never ends by itself."""
    return lambda request: [Progress("prefill", 0, 9), TextDelta(text), FOREVER]


@dataclass
class Stage:
    """The app in front of the test."""

    app: ChatApp
    engine: ScriptedEngine
    store: SessionStore
    pilot: Pilot[int]

    async def type(self, text: str) -> None:
        await self.pilot.press(*(_KEYS.get(character, character) for character in text))

    async def send(self, text: str) -> None:
        """Type `text` and press Enter."""
        self.app.prompt.put(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Send `text` and wait for the end of the answer."""
        before = len(self.engine.requests)
        await self.send(text)
        await self.until(lambda: len(self.engine.requests) > before and self.app.session.messages != ())
        await self.until(lambda: not self.app.answering)

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Let the app work until `condition` holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never came: {self.screen_text()}"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    @property
    def footer(self) -> str:
        return words(self.app.query_one(Footer))

    @property
    def prompts(self) -> list[str]:
        return [words(widget) for widget in self.app.query(UserPrompt)]

    @property
    def answers(self) -> list[str]:
        """The source of each answer on the screen, the one that is coming in included."""
        shown = self.app.transcript.children
        sources = [
            widget.message.text if isinstance(widget, PastAnswer) else _source(widget)
            for widget in shown
            if isinstance(widget, Answer | PastAnswer)
        ]
        return [source for source in sources if source]

    @property
    def closing_lines(self) -> list[str]:
        return [
            widget.line if isinstance(widget, PastAnswer) else words(widget.query_one(".answer-line", Static))
            for widget in self.app.transcript.children
            if isinstance(widget, Answer | PastAnswer)
        ]

    @property
    def remarks(self) -> list[str]:
        return [words(widget) for widget in self.app.query(Remark)]

    def screen_text(self) -> str:
        """What the screen shows, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)


_KEYS = {" ": "space", "/": "slash", ".": "full_stop", "-": "minus"}


def _source(answer: Widget) -> str:
    return "".join(part.source for part in answer.query(AnswerText))


def words(widget: Widget) -> str:
    return str(widget.render())


@asynccontextmanager
async def on_stage(
    directory: Path,
    script: Callable[[GenerateRequest], Script] = script_for,
    *,
    engine: ScriptedEngine | None = None,
    session: Session | None = None,
    size: tuple[int, int] = (120, 30),
) -> AsyncIterator[Stage]:
    engine = engine or ScriptedEngine(script)
    store = SessionStore(directory)
    app = ChatApp(engine, store, session or store.create(engine.model.id))
    async with app.run_test(size=size) as pilot:
        yield Stage(app, engine, store, pilot)

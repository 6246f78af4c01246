"""`ftagent chat`: the screen that talks to a model. Reads the engine through `engine.api` alone.

Engine events are collected in a worker; widgets change only in handlers of this app, which redraw at the
pace of `pacing`. Every key and command is a row of `actions`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.driver import Driver
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static
from textual.worker import Worker

from ftagent.answer import Recorder, chat_request
from ftagent.engine.api import Engine, GenerateRequest
from ftagent.errors import ConfigError, FtError
from ftagent.sessions import NEWEST, Session, SessionStore, SessionSummary
from ftagent.tui import lifetime
from ftagent.tui.actions import ACTIONS, Action, help_lines, parse_command, unknown_command
from ftagent.tui.export import last_answer, write_export
from ftagent.tui.figures import TurnFigures, details, figures
from ftagent.tui.pacing import LONGEST_S, Pacer
from ftagent.tui.prompt import PromptInput
from ftagent.tui.transcript import Answer, Remark, Transcript, UserPrompt
from ftagent.tui.turn import Turn
from ftagent.tui.widgets import FiguresColumn, Footer, StatusRow, header_text

TICK_S = 0.25
QUIT_AGAIN_S = 2.0
NOTICE_S = 6.0
LISTED_SESSIONS = 30


def _bindings() -> list[BindingType]:
    """Priority, so that no widget takes a key of the table; an action that does not apply passes it on."""
    return [
        Binding(",".join(action.keys), action.id, action.help, show=False, priority=True, id=action.id)
        for action in ACTIONS
        if action.keys and action.scope == "app"
    ]


class ChatApp(App[int], inherit_bindings=False):
    """One conversation with one engine, which the caller has started and closes."""

    CSS_PATH = "chat.tcss"
    TITLE = "ftagent chat"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = _bindings()
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - its type is the base class's
        (0, "-tiny"),
        (60, "-narrow"),
        (100, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-tall")]  # noqa: RUF012

    @dataclass
    class TurnEnded(Message):
        """No more events of `turn` will come."""

        turn: Turn

    def __init__(
        self, engine: Engine, store: SessionStore, session: Session, thinking: bool | None = None
    ) -> None:
        # Said here already: Textual chooses how it honours NO_COLOR before the theme is set.
        super().__init__(ansi_color=True)
        self._engine = engine
        self._store = store
        self._session = session
        self._recorder = self._new_recorder()
        # Held, not queried: a timer may still fire when the screen is already being taken down.
        self.prompt = PromptInput()
        self.transcript = Transcript()
        self._column = FiguresColumn()
        self._row = StatusRow()
        self._footer = Footer()
        self._thinking = thinking  # None: the model's own default
        self._folded = True
        self._turn: Turn | None = None
        self._answer = Answer()
        self._reader: Worker[None] | None = None
        self._redraw: Timer | None = None
        self._ticked = 0.0  # when the figures were last shown, by time.monotonic()
        self._figures = TurnFigures()
        self._quit_armed_until = 0.0
        self._notice_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(Content(header_text(self._engine.model)), id="header")
        with Horizontal(id="middle"):
            yield self.transcript
            yield self._column
        yield self._row
        with Vertical(id="prompt-frame"):
            yield self.prompt
        yield self._footer

    async def on_mount(self) -> None:
        self.theme = "ansi-dark"  # names the terminal's own sixteen colours; right on light ones as well
        self.prompt.focus()
        self.prompt.remember(self._session.prompts)
        self.set_interval(TICK_S, self._tick)
        if self._session.messages:
            await self.transcript.show_session(self._session.messages, self._folded)

    def on_unmount(self) -> None:
        """However the screen ends, keep what was answered so far."""
        if self._turn is not None:
            self._recorder.reply(self._turn.reply)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def answering(self) -> bool:
        return self._turn is not None

    # The turn: send, read, redraw, end.

    @on(PromptInput.Sent)
    async def _sent(self, message: PromptInput.Sent) -> None:
        command = parse_command(message.text)
        if command is not None and command.action is not None:
            await self._run(command.action, command.argument)
        elif command is not None:
            self._refuse(message.text, unknown_command(command.name))
        elif self._turn is not None:
            self._refuse(message.text, "still answering; Esc stops it")
        else:
            await self._ask(message.text.strip("\n"))

    def _refuse(self, typed: str, why: str) -> None:
        """Say why `typed` was not sent, and give it back."""
        self._notice(why)
        if not self.prompt.text:
            self.prompt.put(typed)

    async def _ask(self, prompt: str) -> None:
        self._turn = turn = Turn(prompt)
        self._recorder.prompt(turn.prompt)
        self._answer = Answer(self._folded)
        with self.batch_update():
            await self.transcript.settle(self._folded)
            await self.transcript.add(UserPrompt(turn.prompt), self._answer)
        self.transcript.anchor()
        request = chat_request(self._session, self._thinking)
        self._reader = self.run_worker(self._read(request, turn), group="turn")
        await self._draw(turn, Pacer())

    async def _read(self, request: GenerateRequest, turn: Turn) -> None:
        """The worker: touches no widget."""
        try:
            async with aclosing(self._engine.generate(request)) as events:
                async for event in events:
                    turn.add(event)
        except FtError as error:
            turn.error = error
        finally:
            self.post_message(self.TurnEnded(turn))

    async def _draw(self, turn: Turn, pacer: Pacer) -> None:
        """Show what has come in, and do it again after a while that fits its cost."""
        if turn is self._turn:
            await self._answer.show(turn)
            if time.monotonic() - self._ticked >= TICK_S:
                self._show_figures()  # in the same frame: one redraw costs the engine less than two
            self._redraw = self.set_timer(pacer.pause_s(), lambda: self._draw(turn, pacer))

    @on(TurnEnded)
    async def _end(self, message: TurnEnded) -> None:
        """Also comes a second time for a turn that was stopped, when the engine has let go of it."""
        turn = message.turn
        if turn is not self._turn:
            return
        self._turn = None
        if self._redraw is not None:
            self._redraw.stop()
        self._recorder.reply(turn.reply)
        self._figures = turn.figures
        if not turn.reply.blocks and not self.prompt.text:
            self.prompt.put(turn.prompt)  # nothing was answered: the user may change it and send again
        await self._answer.close(turn)

    def action_stop(self) -> None:
        turn = self._turn
        if turn is None:
            raise SkipAction
        turn.stopped = True
        if self._reader is not None:
            self._reader.cancel()
        self.post_message(self.TurnEnded(turn))

    # Figures.

    def _tick(self) -> None:
        if self._turn is None or time.monotonic() - self._ticked >= LONGEST_S + TICK_S:
            self._show_figures()

    def _show_figures(self) -> None:
        self._ticked = time.monotonic()
        turn = self._turn.figures if self._turn is not None else self._figures
        try:
            snapshot = self._engine.stats()
        except FtError:
            snapshot = None
        now = figures(snapshot, self._engine.model, self._engine.health, turn, time.monotonic())
        self._column.show(now)
        self._row.show(now)

    # Keys.

    def action_interrupt(self) -> None:
        if self.prompt.selected_text or self.screen.get_selected_text():
            raise SkipAction  # copies it
        now = time.monotonic()
        if now < self._quit_armed_until:
            self.action_exit()
            return
        self._quit_armed_until = now + QUIT_AGAIN_S
        if self._turn is not None:
            self.action_stop()
        self.prompt.clear()
        self._notice("Ctrl+C again quits")

    @on(PromptInput.Left)
    def _left(self) -> None:
        self.action_exit()

    def action_page_back(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_page_on(self) -> None:
        self.transcript.scroll_page_down(animate=False)

    def action_fold(self) -> None:
        self._folded = not self._folded
        self.transcript.fold(self._folded)

    def action_suspend(self) -> None:
        self.action_suspend_process()

    @on(Driver.SignalResume)
    def _resumed(self) -> None:
        """Draw all of the screen: the terminal came back empty, and only changes would be drawn."""
        self.screen.refresh()

    def action_exit(self) -> None:
        self.exit(0)

    # Slash commands.

    async def _run(self, action: Action, argument: str) -> None:
        """Run a slash command; its argument goes to `command_<id>`, or the key's action does it all."""
        handler = getattr(self, f"command_{action.id}", None)
        if handler is None:
            await self.run_action(action.id)
            return
        try:
            await handler(argument)
        except FtError as error:
            self._notice(str(error))

    async def action_help(self) -> None:
        rows = help_lines()
        width = max(len(call) for call, _ in rows)
        await self._remark("\n".join(f"{call:<{width}}  {text}" for call, text in rows))

    async def command_new(self, argument: str) -> None:
        await self._open(self._store.create(self._engine.model.id))

    async def command_resume(self, argument: str) -> None:
        others = [session.id for session in self._store.summaries() if session.id != self._session.id]
        await self._open(self._store.resume(argument or (others[0] if others else NEWEST)))
        await self._remark(f"resumed {self._session.id}")

    async def _open(self, session: Session) -> None:
        if self._turn is not None:
            raise ConfigError("still answering; Esc stops it")
        self._session = session
        self._recorder = self._new_recorder()
        self.prompt.remember(session.prompts)
        self._figures = TurnFigures()
        await self.transcript.show_session(session.messages, self._folded)

    async def command_sessions(self, argument: str) -> None:
        sessions = self._store.summaries()
        rows = [_session_row(session) for session in sessions[:LISTED_SESSIONS]]
        if len(sessions) > LISTED_SESSIONS:
            rows.append(f"and {len(sessions) - LISTED_SESSIONS} older ones in {self._store.directory}")
        await self._remark("\n".join(rows) or f"no sessions yet in {self._store.directory}")

    async def command_think(self, argument: str) -> None:
        if not self._engine.model.thinking:
            raise ConfigError("this model has no thinking switch")
        if argument not in ("on", "off", ""):
            raise ConfigError(f"/think takes on or off, not {argument!r}")
        if argument:
            self._thinking = argument == "on"
        state = {None: "as the model does by default", True: "on", False: "off"}[self._thinking]
        self._notice(f"thinking: {state}")

    async def command_stats(self, argument: str) -> None:
        rows = details(self._engine.stats())
        width = max(len(row.label) for row in rows)
        await self._remark("\n".join(f"{row.label:<{width}}  {row.value}" for row in rows))

    async def command_copy(self, argument: str) -> None:
        answer = last_answer(self._session.messages)
        if not answer:
            raise ConfigError("there is no answer to copy yet")
        self.copy_to_clipboard(answer)
        self._notice("sent to the terminal's clipboard")

    async def command_export(self, argument: str) -> None:
        if not argument:
            raise ConfigError("/export needs a file name")
        if not self._session.messages:
            raise ConfigError("there is nothing to export yet")
        path = write_export(self._session, argument)
        self._notice(f"written to {path}")

    async def _remark(self, text: str) -> None:
        self.transcript.anchor()
        await self.transcript.add(Remark(text))

    def _notice(self, text: str) -> None:
        """Say one line in the footer for a while."""
        if self._notice_timer is not None:
            self._notice_timer.stop()
        self._footer.notice(text)
        self._notice_timer = self.set_timer(NOTICE_S, lambda: self._footer.notice(""))

    def _new_recorder(self) -> Recorder:
        return Recorder(self._session, self._notice)


def _session_row(row: SessionSummary) -> str:
    started = datetime.fromtimestamp(row.started)
    return f"{row.id}  {started:%Y-%m-%d %H:%M}  {row.turns:>3} turns  {row.first_line}"


def run_chat(
    engine: Engine, *, store: SessionStore, resume: str | None = None, thinking: bool | None = None
) -> int:
    """Talk until the user quits; returns the exit code. The engine stays open.

    `resume` is None for a new session, `sessions.NEWEST` (or an empty string) for the one used last, else
    the beginning of an id. `thinking` is the switch to start with; None leaves it to the model. Raises
    ConfigError when there is no terminal, or no such session. SIGTERM, SIGHUP and SIGINT end it with 128 +
    the signal's number, the terminal restored.
    """
    need_terminal()
    session = store.create(engine.model.id) if resume is None else store.resume(resume or NEWEST)
    return asyncio.run(lifetime.run_until_signal(ChatApp(engine, store, session, thinking)))


def need_terminal() -> None:
    """Raise ConfigError where the screen cannot be drawn or the keys cannot be read."""
    lifetime.need_terminal("chat", 'for one answer without a screen use `ftagent chat -p "..."`')

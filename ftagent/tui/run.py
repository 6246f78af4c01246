"""The run screen: an agent's own terminal, and beside it what the engine does.

The agent gets every key but those of `host_keys`. Knows no agent: a command line, an environment and a feed
of figures come from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.driver import Driver
from textual.timer import Timer
from textual.widgets import Static

from ftagent.adapters.process import Ended, reaping
from ftagent.answer import safe_text
from ftagent.tui import lifetime
from ftagent.tui.feed import TICK_S, Feed, History
from ftagent.tui.figures import fit
from ftagent.tui.host_keys import PREFIX_S, HostAction, HostKeys
from ftagent.tui.panes import COLUMNS, run_figures
from ftagent.tui.terminal.driver import PaneDriver
from ftagent.tui.terminal.emulator import Colours
from ftagent.tui.terminal.view import TerminalView
from ftagent.tui.widgets import FiguresColumn, StatusRow

NOTICE_S = 6.0
_BELL_S = 0.5  # bells that follow sooner are not passed on
# What agents turn in their titles while they work: braille patterns and half circles.
_SPINNER = frozenset(map(chr, range(0x2800, 0x2900))) | frozenset("◐◓◑◒")
_WRAPPER_FAILED = 125


@dataclass(frozen=True, slots=True)
class Agent:
    """What runs in the pane. `arguments` begin with the program's path."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)  # has the engine's token


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the screen ended: the exit code to pass on, and the agent's last screen, as lines to print."""

    exit_code: int
    screen: tuple[str, ...] = ()


def busy(title: str) -> bool | None:
    """Whether an agent works, by the spinner in its window title; None if the title does not tell."""
    if not title:
        return None
    if title[0] in _SPINNER:
        return True
    return False if title[0] == "✳" else None


class RunFooter(Static):
    """One row: the agent and whether it works, then the host's keys, or for a while a notice."""

    def __init__(self, agent: str, keys: HostKeys) -> None:
        super().__init__(markup=False)
        self._agent, self._keys = agent, keys
        self._title, self._notice, self._shown = "", "", ""

    def titled(self, title: str) -> None:
        self._title = safe_text(title)
        self.draw()

    def notice(self, text: str) -> None:
        """Show `text` in place of the keys; empty brings them back."""
        self._notice = safe_text(text)
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        width = self.content_size.width
        labels = (f"{self._keys.shown_prefix} host keys", *self._keys.footer_labels())
        state = {True: "● busy", False: "○ idle", None: ""}[busy(self._title)]
        right = self._notice or fit(
            (state, *labels) if state else labels, max(0, width - len(self._agent) - 2), " · "
        )
        line = f"{self._agent}  {right}"[:width]
        if line != self._shown:
            self._shown = line
            self.update(Content(line), layout=False)


class RunApp(App[int], inherit_bindings=False):
    """One agent in one terminal."""

    CSS_PATH = "run.tcss"
    TITLE = "ftagent run"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - its type is the base class's
        (0, "-tiny"),
        (60, "-narrow"),
        (COLUMNS, "-wide"),
        (140, "-wider"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-tall")]  # noqa: RUF012

    def __init__(self, agent: Agent, feed: Feed, keys: HostKeys, colours: Colours) -> None:
        # Said here already: Textual chooses how it honours NO_COLOR before the theme is set.
        super().__init__(ansi_color=True, driver_class=PaneDriver)
        self.agent = agent
        self.view = TerminalView(agent.arguments, agent.environment, self._take_key, colours)
        self.ended: Ended | None = None
        self.failure: Exception | None = None
        self._feed = feed
        self._keys = keys
        self._history = History()
        self._column = FiguresColumn()
        self._row = StatusRow()
        self._footer = RunFooter(agent.name, keys)
        self._notice_timer: Timer | None = None
        self._mouse = True
        self._rang = 0.0

    def compose(self) -> ComposeResult:
        with Horizontal(id="middle"):
            yield self.view
            yield self._column
        yield self._row
        yield self._footer
        lines = self._keys.help_lines()
        width = max(len(keys) for keys, _ in lines)
        yield Static(Content("\n".join(f"{keys:<{width}}  {words}" for keys, words in lines)), id="help")

    def on_mount(self) -> None:
        self.theme = "ansi-dark"  # names the terminal's own sixteen colours; right on light ones as well
        self.view.focus()
        self.set_interval(TICK_S, self._tick)
        self.call_after_refresh(self._tick)

    def _tick(self) -> None:
        tick = self._feed.tick()
        trace = self._history.add(tick)
        with self.batch_update():
            shown = run_figures(tick, trace, self._column.content_size.width)
            self._column.show(shown)
            self._row.show(shown)

    # The agent.

    @on(TerminalView.Titled)
    def _titled(self, message: TerminalView.Titled) -> None:
        self._footer.titled(message.title)

    @on(TerminalView.Finished)
    def _finished(self, message: TerminalView.Finished) -> None:
        self.ended = message.ended
        self.exit(message.ended.exit_code)

    @on(TerminalView.Failed)
    def _failed(self, message: TerminalView.Failed) -> None:
        self.failure = message.error
        self.exit(_WRAPPER_FAILED)

    @on(TerminalView.Suspended)
    def _suspended(self) -> None:
        self.action_suspend_process()

    @on(TerminalView.Copied)
    def _copied(self, message: TerminalView.Copied) -> None:
        self.copy_to_clipboard(message.text)
        self._notice("sent to the terminal's clipboard")

    @on(TerminalView.Rang)
    def _bell(self) -> None:
        now = time.monotonic()
        if now - self._rang >= _BELL_S:
            self._rang = now
            self.bell()

    @on(Driver.SignalResume)
    def _resumed(self) -> None:
        """Draw all of the screen: the terminal came back empty, and only changes would be drawn."""
        self.view.child.resume()
        self.screen.refresh()

    # Keys.

    def _take_key(self, event: events.Key) -> bool:
        """Whether a key was the host's; the view asks this before it sends one."""
        verdict = self._keys.press(event.key, event.character, time.monotonic())
        if verdict == "pass":
            return False
        if isinstance(verdict, HostAction):
            self._notice("")
            self.call_next(getattr(self, f"action_{verdict.id}"))
        elif verdict == "send":
            self._notice("")
            self.view.send_key(event)
        elif verdict == "wait":
            letters = "  ".join(f"{action.letter} {action.id}" for action in self._keys.actions)
            self._notice(f"{self._keys.shown_prefix} …  {letters}", PREFIX_S)
        else:
            self._notice(f"that is no host key; {self._keys.shown_prefix} h lists them")
        return True

    def action_help(self) -> None:
        self.screen.toggle_class("-helping")

    def action_panels(self) -> None:
        self.screen.toggle_class("-alone")

    def action_mouse(self) -> None:
        """Textual has no public switch for the mouse; its driver has."""
        self._mouse = not self._mouse
        driver = self._driver
        if isinstance(driver, PaneDriver):
            driver.use_mouse(self._mouse)
        self._notice("the mouse is the agent's" if self._mouse else "the mouse selects text in the terminal")

    def action_page_back(self) -> None:
        self.view.scroll_back(self.view.size.height - 1)

    def action_page_on(self) -> None:
        self.view.scroll_back(1 - self.view.size.height)

    def action_suspend(self) -> None:
        self.action_suspend_process()

    def action_quit(self) -> None:  # type: ignore[override]  # Textual's own is asynchronous for no need of ours
        """Hang up: the agent may tidy up and end, which ends the screen. A second time ends it at once."""
        if self.view.child.running:
            self.view.child.end()
            self._notice("asked the agent to end")
        else:
            self.exit(0)

    def _notice(self, text: str, seconds: float = NOTICE_S) -> None:
        if self._notice_timer is not None:
            self._notice_timer.stop()
        self._say(text)
        self._notice_timer = self.set_timer(seconds, lambda: self._say(""))

    def _say(self, text: str) -> None:
        """In the row that there is: the footer of a wide terminal, the figures' row of a narrow one."""
        self._footer.notice(text)
        self._row.notice(text)

    def last_screen(self) -> tuple[str, ...]:
        """What the agent's screen shows, for printing, down to the last row with something on it."""
        return tuple(strip.render(self.console).rstrip(" ") for strip in self.view.screen_strips())


def run_agent(agent: Agent, feed: Feed, keys: HostKeys, colours: Colours) -> Outcome:
    """Show the agent until it ends; then its processes are gone and the terminal is as it was, in any case.

    Raises AgentNotExecutable or AgentFailed if it cannot be started. SIGTERM, SIGHUP and SIGINT end it, with
    128 + the signal's number.
    """
    with reaping() as reap:
        app = RunApp(agent, feed, keys, colours)
        try:
            code = asyncio.run(lifetime.run_until_signal(app))
        finally:
            app.view.child.end()
            app.view.child.close()
            if app.view.child.pid:
                reap(app.view.child.pid)
    if app.failure is not None:
        raise app.failure
    crashed = app.ended is None and code == 1
    return Outcome(_WRAPPER_FAILED if crashed else code, app.last_screen())

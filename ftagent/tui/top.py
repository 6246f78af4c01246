"""`ftagent top`: the figures of an engine, alone on a screen. Changes nothing of the engine."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from ftagent.tui import lifetime
from ftagent.tui.feed import TICK_S, Feed, History
from ftagent.tui.panes import run_figures
from ftagent.tui.widgets import FiguresColumn, StatusRow

WIDTH = 48  # columns beyond which a longer line is harder to read


class TopApp(App[int], inherit_bindings=False):
    """The column of the run screen, as wide as there is use for."""

    CSS = f"""
    Screen {{ layout: vertical; }}
    FiguresColumn {{ width: 100%; max-width: {WIDTH}; height: 1fr; padding: 0 1; }}
    StatusRow {{ display: none; height: 1; padding: 0 1; }}
    .-flat FiguresColumn {{ display: none; }}
    .-flat StatusRow {{ display: block; }}
    """
    TITLE = "ftagent top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,ctrl+c,ctrl+d", "leave", "quit", show=False, priority=True)
    ]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (8, "-tall")]  # noqa: RUF012 - its type is the base class's

    def __init__(self, feed: Feed) -> None:
        # Said here already: Textual chooses how it honours NO_COLOR before the theme is set.
        super().__init__(ansi_color=True)
        self._feed = feed
        self._history = History()
        self._column = FiguresColumn()
        self._row = StatusRow()

    def compose(self) -> ComposeResult:
        yield self._column
        yield self._row

    def on_mount(self) -> None:
        self.theme = "ansi-dark"  # names the terminal's own sixteen colours; right on light ones as well
        self.set_interval(TICK_S, self._tick)
        self.call_after_refresh(self._tick)

    def _tick(self) -> None:
        tick = self._feed.tick()
        shown = run_figures(tick, self._history.add(tick), self._column.content_size.width)
        self._column.show(shown)
        self._row.show(shown)

    def action_leave(self) -> None:
        self.exit(0)


def run_top(feed: Feed) -> int:
    """Show the figures until the user leaves; returns the exit code."""
    return asyncio.run(lifetime.run_until_signal(TopApp(feed)))

"""The run screen under Pilot: what the program asks of its host, and what the host's keys do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from textual import events
from textual.pilot import Pilot

from ftagent.tui.feed import LocalFeed
from ftagent.tui.host_keys import HostKeys
from ftagent.tui.run import Agent, RunApp
from ftagent.tui.terminal.emulator import Colours, row_text
from tests.support.command import REPOSITORY
from tests.support.scripted import ScriptedEngine

pytestmark = pytest.mark.anyio
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"}


@dataclass
class Stage:
    app: RunApp
    pilot: Pilot[int]

    @property
    def program(self) -> str:
        """What the program's screen shows."""
        emulator = self.app.view.emulator
        return "\n".join(row_text(emulator.row(index)) for index in range(emulator.rows))

    @property
    def screen(self) -> str:
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never came: {self.screen}"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def until_shown(self, text: str) -> None:
        await self.until(lambda: text in self.screen)


@asynccontextmanager
async def on_stage(*arguments: str, size: tuple[int, int] = (120, 30)) -> AsyncIterator[Stage]:
    agent = Agent("probe", arguments, ENVIRONMENT)
    app = RunApp(agent, LocalFeed(ScriptedEngine(lambda request: [])), HostKeys("ctrl+]"), Colours())
    async with app.run_test(size=size) as pilot:
        yield Stage(app, pilot)
        app.view.child.end(9)
        end = time.monotonic() + 10
        while app.view.child.running and time.monotonic() < end:
            await pilot.pause(0.01)
        app.view.child.close()


def probe(*sequences: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.probe_child", *sequences)


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_text_for_the_clipboard_is_passed_on() -> None:
    async with on_stage(*probe(r"\x1b]52;c;aGVsbG8=\x07")) as stage:
        await stage.until(lambda: stage.app.clipboard == "hello")
        await stage.until_shown("sent to the terminal's clipboard")


async def test_the_title_tells_who_is_busy() -> None:
    async with on_stage(*shell("printf '\\033]0;⠂ working\\007'; sleep 100")) as stage:
        await stage.until_shown("probe  ● busy")


async def test_older_rows_can_be_scrolled_to_and_a_key_comes_back() -> None:
    async with on_stage(*shell("stty raw -echo; seq -f 'line %g' 100 | sed 's/$/\\r/'; cat")) as stage:
        await stage.until(lambda: "line 100" in stage.program)
        await stage.pilot._post_mouse_events([events.MouseScrollUp], stage.app.view, button=0)
        await stage.until_shown("line 70")
        assert "line 100" not in stage.screen
        await stage.pilot.press("ctrl+right_square_bracket", "b")
        await stage.until_shown("line 42")
        await stage.pilot.press("a")
        await stage.until_shown("line 100")


async def test_new_output_does_not_move_what_is_read() -> None:
    script = "stty raw -echo; seq -f 'line %g' 100 | sed 's/$/\\r/'; head -c 1 >/dev/null; echo; seq 5; cat"
    async with on_stage(*shell(script)) as stage:
        await stage.until(lambda: "line 100" in stage.program)
        stage.app.view.scroll_back(50)
        await stage.until_shown("line 30")
        stage.app.view.child.write(b"x")
        await stage.until(lambda: "5" in stage.program.split("\n")[-2])
        assert "line 30" in stage.screen


async def test_clicks_and_drags_reach_a_program_that_asked() -> None:
    async with on_stage(*probe(r"\x1b[?1002h\x1b[?1006h")) as stage:
        await stage.until(lambda: "ready" in stage.program)
        await stage.pilot.click(stage.app.view, offset=(4, 2))
        pressed = b"\x1b[<0;5;3M".hex()
        await stage.until(lambda: pressed in stage.program)
        await stage.until(lambda: b"\x1b[<0;5;3m".hex() in stage.program)


async def test_focus_is_reported_when_the_terminal_loses_it() -> None:
    async with on_stage(*probe(r"\x1b[?1004h")) as stage:
        await stage.until(lambda: "ready" in stage.program)
        stage.app.post_message(events.AppBlur())
        await stage.until(lambda: b"\x1b[O".hex() in stage.program)
        stage.app.post_message(events.AppFocus())
        await stage.until(lambda: b"\x1b[I".hex() in stage.program)


async def test_half_a_frame_is_not_shown() -> None:
    begin, end = "printf 'old\\033[?2026h\\033[2J\\033[Hne'", "printf 'w\\033[?2026l'"
    script = f"stty raw -echo; {begin}; head -c 1 >/dev/null; {end}; cat"
    async with on_stage(*shell(script)) as stage:
        await stage.until(lambda: "ne" in stage.program)
        stage.app.view.child.write(b"x")
        await stage.until_shown("new")


async def test_help_and_figures_are_toggled() -> None:
    async with on_stage(*probe()) as stage:
        await stage.until_shown("Memory")
        await stage.pilot.press("f12")
        await stage.until(lambda: "Memory" not in stage.screen)
        await stage.pilot.press("f12", "f1")
        await stage.until_shown("show or hide this help")
        await stage.until_shown("Now ─")


async def test_an_unknown_key_behind_the_prefix_is_said() -> None:
    async with on_stage(*probe()) as stage:
        await stage.until(lambda: "ready" in stage.program)
        await stage.pilot.press("ctrl+right_square_bracket", "y")
        await stage.until_shown("that is no host key")
        assert "read=" not in stage.program


async def test_a_narrow_terminal_has_one_row_for_figures_and_notices() -> None:
    async with on_stage(*probe(), size=(80, 20)) as stage:
        await stage.until(lambda: "ready" in stage.program and "idle" in stage.screen.split("\n")[-1])
        assert stage.app.view.size == (80, 19)
        await stage.pilot.press("ctrl+right_square_bracket")
        await stage.until(lambda: "^] …" in stage.screen.split("\n")[-1])
        await stage.pilot.press("ctrl+right_square_bracket")
        await stage.until(lambda: "idle" in stage.screen.split("\n")[-1] and "read=1d" in stage.program)


async def test_the_end_of_the_program_is_the_end_of_the_screen() -> None:
    script = (
        "stty raw -echo; printf '\\033[?1049hfull'; head -c 1 >/dev/null; printf '\\033[?1049lhint'; exit 5"
    )
    async with on_stage(*shell(script)) as stage:
        await stage.until(lambda: "full" in stage.program)
        stage.app.view.child.write(b"x")
        await stage.until(lambda: stage.app.ended is not None)
        assert stage.app.return_value == 5
        assert [line.strip() for line in stage.app.last_screen()] == ["full", "hint"]

"""The screens of the real agents: what each writes looks in our emulator as in tmux, row by row."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.adapters import base
from ftagent.adapters.process import Ended, reaping
from ftagent.commands.interactive import pane_environment
from ftagent.gateway.server import start_gateway
from ftagent.tui.terminal.board import BoardEmulator
from ftagent.tui.terminal.child import PtyChild
from ftagent.tui.terminal.emulator import Modes, row_text
from ftagent.tui.terminal.keys import encode_key
from tests.end_to_end.agents import TASKS, Agent, each_agent, playing, scratch_repository
from tests.support.command import private_environment
from tests.support.scripted import ScriptedEngine
from tests.support.terminal import TMUX
from tests.tui.terminal.casts import Size
from tests.tui.terminal.tmux_oracle import Oracle, oracle

pytestmark = [
    pytest.mark.agent,
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed"),
]
SIZE = Size(112, 36)
QUIET_S = 1.5  # nothing new on the screen for so long: the agent waits for its user


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Oracle]:
    with oracle(tmp_path) as opened:
        yield opened


@dataclass
class Watched:
    """An agent on a terminal of ours, and every byte that it wrote."""

    child: PtyChild
    emulator: BoardEmulator
    written: bytearray = field(default_factory=bytearray)
    ended: list[Ended] = field(default_factory=list)

    @property
    def screen(self) -> str:
        return "\n".join(row_text(self.emulator.row(index)) for index in range(SIZE.rows))

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < end, f"never came; the screen is:\n{self.screen}"
            await asyncio.sleep(0.05)  # the pause of a poll

    async def quiet(self) -> None:
        """Until nothing changes any more; spinners and clocks are given a while."""
        loop = asyncio.get_running_loop()
        end, since, seen = loop.time() + 20, loop.time(), self.screen
        while loop.time() - since < QUIET_S and loop.time() < end:
            await asyncio.sleep(0.05)  # the pause of a poll
            if self.screen != seen:
                since, seen = loop.time(), self.screen

    async def type(self, text: str) -> None:
        """Type `text` until it stands there: an agent drops keys while it is still starting."""
        for _ in range(10):
            for character in text:
                self.press(character, character)
            try:
                await self.until(lambda: text in self.screen, 4)
            except AssertionError:
                self.press("ctrl+u")
                continue
            return
        raise AssertionError(f"{text!r} was never taken; the screen is:\n{self.screen}")

    def press(self, key: str, character: str | None = None) -> None:
        self.child.write(encode_key(key, character, self.emulator.modes))


@asynccontextmanager
async def watched(agent: Agent, url: str, token: str, directory: Path) -> AsyncIterator[Watched]:
    """The agent as `ftagent run` starts it in a pane, without the pane."""
    project = scratch_repository(directory)
    adapter = adapters.get(agent.name)
    environment = private_environment(directory) | base.scrubbed(adapter, os.environ)
    environment["HOME"] = str(directory / "home")
    program = base.program(adapter, agent.found, environment, project, ())
    own = directory / "agent"
    own.mkdir()
    target = base.Target(url, token, "scripted", 65536)
    launch = adapter.prepare(base.Order(program=program.words, target=target, directory=own, project=project))
    inside = pane_environment(adapter, {**environment, **launch.environment})

    def output(data: bytes) -> None:
        seen.written += data
        seen.emulator.feed(data)
        seen.child.write(seen.emulator.replies(), answer=True)

    child = PtyChild(launch.arguments, inside, output, lambda ended: seen.ended.append(ended), lambda: None)
    seen = Watched(child, BoardEmulator(*SIZE))
    before = Path.cwd()
    os.chdir(project)
    with reaping() as reap:
        try:
            child.start(*SIZE)
            yield seen
        finally:
            os.chdir(before)
            child.end()
            child.close()
            reap(child.pid)


@each_agent
async def test_its_screen_looks_as_in_tmux(agent: Agent, tmp_path: Path, judge: Oracle) -> None:
    engine = ScriptedEngine(playing(TASKS[1], tmp_path / "project"))
    with start_gateway(engine) as gateway:
        async with watched(agent, gateway.url, gateway.token or "", tmp_path) as seen:
            # It has asked for something: pastes, keys, focus, a screen of its own.
            await seen.until(lambda: seen.emulator.modes != Modes() and "project" in seen.screen)
            await seen.quiet()
            first = bytes(seen.written), rows(seen.emulator)
            await seen.type("hello")
            seen.press("enter", "\r")
            await seen.until(lambda: bool(engine.requests))
            await seen.quiet()
            last = bytes(seen.written), rows(seen.emulator)
    for written, ours in (first, last):
        assert ours == judge.screen(SIZE, [written]).text


def rows(emulator: BoardEmulator) -> list[str]:
    return [row_text(emulator.row(index)) for index in range(emulator.rows)]

"""A program on a pseudo-terminal: its size from the first moment, its end, and what it leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from ftagent.adapters.process import Ended
from ftagent.errors import AgentNotExecutable
from ftagent.tui.terminal.child import READ_BYTES, PtyChild
from tests.support.command import REPOSITORY

pytestmark = pytest.mark.anyio
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
PROBE = (sys.executable, "-m", "tests.support.probe_child")


@dataclass
class Watched:
    """A child, and all that it was heard to do."""

    child: PtyChild
    output: bytearray = field(default_factory=bytearray)
    pieces: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    stops: int = 0

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < end, f"never came; it wrote {bytes(self.output)!r}"
            await asyncio.sleep(0.01)  # the pause of a poll

    async def until_said(self, words: str) -> None:
        await self.until(lambda: words.encode() in self.output)


@asynccontextmanager
async def started(*arguments: str, size: tuple[int, int] = (90, 33)) -> AsyncIterator[Watched]:
    def output(data: bytes) -> None:
        watched.output += data
        watched.pieces.append(len(data))

    def stopped() -> None:
        watched.stops += 1

    child = PtyChild(arguments, ENVIRONMENT, output, lambda ended: watched.ended.append(ended), stopped)
    watched = Watched(child)
    child.start(*size)
    try:
        yield watched
    finally:
        child.end(signal.SIGKILL)
        await watched.until(lambda: bool(watched.ended))
        child.close()


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_the_size_is_right_at_the_first_read_and_follows() -> None:
    async with started(*PROBE, size=(71, 23)) as watched:
        await watched.until_said("ready")
        assert watched.output.startswith(b"size=71x23\r")
        watched.child.resize(100, 40)
        await watched.until_said("size=100x40")


@pytest.mark.parametrize("code", [0, 1, 7, 130, 255])
async def test_the_exit_code_comes_after_all_output(code: int) -> None:
    async with started(*shell(f"seq 20000; exit {code}")) as watched:
        await watched.until(lambda: bool(watched.ended))
        assert watched.ended == [Ended(code)]
        assert watched.output.endswith(b"19999\r\n20000\r\n")


async def test_a_death_by_signal_is_told() -> None:
    async with started(*shell("kill -9 $$")) as watched:
        await watched.until(lambda: bool(watched.ended))
        assert watched.ended[0].exit_code == 128 + signal.SIGKILL


async def test_it_has_the_terminal_as_its_own() -> None:
    script = "exec 3</dev/tty && echo controlling; ps -o tpgid=,pgid= $$ 2>/dev/null; trap - INT; sleep 100"
    async with started(*shell(script)) as watched:
        await watched.until_said("controlling")
        watched.child.write(b"\x03")  # the line discipline makes it SIGINT for the foreground group
        await watched.until(lambda: bool(watched.ended))
        assert watched.ended[0].exit_code == 130


async def test_signals_are_not_ignored_because_we_ignore_them() -> None:
    previous = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        async with started(*shell("grep SigIgn /proc/self/status; sleep 100")) as watched:
            await watched.until_said("\n")
            ignored = int(watched.output.split()[1], 16)
            assert not ignored & 0x7FFFFFFF  # the first 31; two more are the C library's own
    finally:
        signal.signal(signal.SIGPIPE, previous)


async def test_much_output_comes_in_bounded_pieces() -> None:
    async with started(*PROBE) as watched:
        await watched.until_said("ready")
        watched.child.write(b"b")
        await watched.until_said("burst-done")
        assert max(watched.pieces) <= READ_BYTES
        assert len(watched.output) > 2_000_000


async def test_much_input_arrives_whole_and_in_order() -> None:
    script = "stty raw -echo; echo go; head -c 300000 | cksum; sleep 100"
    data = os.urandom(1000) * 300
    async with started(*shell(script)) as watched:
        await watched.until_said("go")
        for start in range(0, len(data), 70_000):
            assert watched.child.write(data[start : start + 70_000])
        await watched.until(lambda: watched.output.count(b"\n") >= 2)
        process = await asyncio.create_subprocess_exec("cksum", stdin=-1, stdout=-1)
        expected, _ = await process.communicate(data)
        assert expected.split()[:2] == bytes(watched.output).split(b"\n")[1].split()[:2]


async def test_answers_nobody_reads_do_not_pile_up() -> None:
    async with started(*shell("stty raw -echo; echo go; sleep 100")) as watched:
        await watched.until_said("go")
        taken = sum(watched.child.write(b"\x1b[?62;22c" * 100, answer=True) for _ in range(1000))
        assert taken < 1000
        assert watched.child.write(b"typed")


async def test_one_that_stops_itself_goes_on_when_told() -> None:
    async with started(*PROBE) as watched:
        await watched.until_said("ready")
        watched.child.write(b"z")
        await watched.until(lambda: watched.stops == 1)
        watched.child.resume()
        await watched.until_said("resumed")


async def test_hanging_up_ends_it() -> None:
    async with started(*PROBE) as watched:
        await watched.until_said("ready")
        watched.child.end()
        await watched.until(lambda: bool(watched.ended))
        assert watched.ended[0].exit_code == 128 + signal.SIGHUP


async def test_what_cannot_be_run_is_said() -> None:
    child = PtyChild(("/nonexistent/agent",), {}, lambda data: None, lambda ended: None, lambda: None)
    with pytest.raises(AgentNotExecutable, match="/nonexistent/agent"):
        child.start(80, 24)
    assert not child.running
    child.close()

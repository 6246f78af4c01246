"""`ftagent run custom` and `ftagent top` in a real terminal: in the pane, in tmux, and without an engine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent.gateway.server import Gateway, start_gateway
from tests.support.command import PROGRAM, private_environment
from tests.support.scripted import ScriptedEngine
from tests.support.terminal import TMUX, Terminal, terminal

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
PROBE = (sys.executable, "-m", "tests.support.probe_child")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with start_gateway(ScriptedEngine(lambda request: [])) as started:
        yield started


@pytest.fixture
def screen(tmp_path: Path, gateway: Gateway) -> Iterator[Terminal]:
    extra = {"FTAGENT_TOKEN": gateway.token or "", "LC_ALL": "C.UTF-8"}
    with terminal(tmp_path, 140, 30, private_environment(tmp_path, extra)) as opened:
        yield opened


def start(screen: Terminal, *arguments: str) -> None:
    screen.type(f"{shlex.join((*PROGRAM, *arguments))}; echo exit=$?")
    screen.keys("Enter")


def test_a_program_of_the_users_in_the_pane(screen: Terminal, gateway: Gateway) -> None:
    start(screen, "run", "custom", "--engine", gateway.url, "--", *PROBE)
    screen.until_shown("size=104x29", "ready", "Now ───", "experts", "custom")
    screen.keys("x", "6")
    screen.until_shown("exit=6", "size=104x29")
    assert screen.state("alternate_on") == "0"


def test_the_figures_in_a_tmux_pane(screen: Terminal, gateway: Gateway) -> None:
    start(screen, "run", "custom", "--tmux", "--engine", gateway.url, "--", *PROBE)
    screen.until_shown("ready")
    screen.until(lambda: len(screen.tmux("list-panes").splitlines()) == 2)

    def beside() -> str:
        return screen.tmux("capture-pane", "-p", "-t", ":.1")

    screen.until(lambda: "Now ───" in beside() and "idle" in beside())
    screen.keys("x", "6")
    screen.until_shown("exit=6")
    assert len(screen.tmux("list-panes").splitlines()) == 1


def test_figures_of_an_engine_that_has_gone_say_so(screen: Terminal, gateway: Gateway) -> None:
    start(screen, "top", "--engine", gateway.url)
    screen.until_shown("Now ───", "idle", "96 / 128")
    gateway.close()
    screen.until_shown("stale", "96 / 128")
    screen.keys("q")
    screen.until_shown("exit=0")
    assert screen.state("alternate_on") == "0"

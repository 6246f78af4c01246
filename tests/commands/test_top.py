"""`top` and `statusline`: an engine is found, its figures come as text and JSON, none has its exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from ftagent import paths
from ftagent.commands.statusline import line
from ftagent.engine.api import ModelInfo
from ftagent.engine.stats import ExpertStats
from ftagent.gateway.announce import announce
from ftagent.gateway.client import Report
from ftagent.gateway.server import Gateway, start_gateway
from tests.support.command import ftagent
from tests.support.scripted import ScriptedEngine

MODEL = ModelInfo(id="m", family="f", context=65536, vocab=10)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with start_gateway(ScriptedEngine(lambda request: [])) as started:
        yield started


def noted(directory: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """The gateway's note, where a command with `directory` as its home looks for it."""
    monkeypatch.setattr(paths, "state_dir", lambda: directory / "home" / ".local" / "state" / "ftagent")
    return announce(gateway.url, gateway.token, "scripted")


def test_the_engine_of_this_machine_is_found(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with noted(tmp_path, gateway, monkeypatch):
        done = ftagent("top", "--once", "--json", directory=tmp_path)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        assert record["model"]["id"] == "scripted"
        assert record["snapshot"]["pools"][0]["name"] == "kv"
        assert ftagent("statusline", directory=tmp_path).stdout == "○ idle  experts 90%\n"
        assert "scripted: ok" in ftagent("top", "--once", directory=tmp_path).stdout


def test_an_engine_is_named_by_url_and_token(tmp_path: Path, gateway: Gateway) -> None:
    token = {"FTAGENT_TOKEN": gateway.token or ""}
    done = ftagent("statusline", "--engine", gateway.url, "--once", "--json", directory=tmp_path, extra=token)
    assert json.loads(done.stdout)["health"] == "ok"
    refused = ftagent("statusline", "--engine", gateway.url, directory=tmp_path)
    assert refused.returncode == 2
    assert "FTAGENT_TOKEN" in refused.stderr


@pytest.mark.parametrize("command", ["top", "statusline"])
def test_no_engine_has_an_exit_code(command: str, tmp_path: Path) -> None:
    done = ftagent(command, "--once", "--json", directory=tmp_path)
    assert done.returncode == 3
    assert "no engine runs on this machine" in done.stderr
    assert json.loads(done.stdout)["type"] == "error"


def test_the_screen_needs_a_terminal(tmp_path: Path) -> None:
    done = ftagent("top", directory=tmp_path)
    assert done.returncode == 2
    assert "ftagent top --once" in done.stderr


def test_the_line_leaves_out_what_is_unknown() -> None:
    idle = ScriptedEngine(lambda request: []).stats()
    busy = replace(
        idle,
        phase="decode",
        decode_tokens_per_s=61.84,
        prompt_tokens=1000,
        cached_tokens=970,
        context_used=38112,
        waiting=2,
        experts=ExpertStats(9, 1, 83, 17, 0, (), q=0.6),
    )
    words = "● 61.8 tok/s  experts 83%  q* 0.60  cache 97%  context 38,112/65,536  2 waiting"
    assert line(Report("ok", MODEL, busy, 0.0)) == words
    assert line(Report("ok", MODEL, replace(idle, experts=None), 0.0)) == "○ idle"
    assert line(Report("failed", MODEL, None, 0.0)) == "✕ failed"

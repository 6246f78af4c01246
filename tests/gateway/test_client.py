"""The reader of a gateway's figures, and the notes by which a gateway is found."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from ftagent import paths
from ftagent.engine.stats import ExpertStats, PoolStats, Snapshot
from ftagent.errors import ConfigError, EngineError
from ftagent.gateway.announce import announce, announced
from ftagent.gateway.client import build, fetch_report
from ftagent.gateway.metrics import plain
from ftagent.gateway.server import start_gateway
from tests.support.command import REPOSITORY
from tests.support.scripted import ScriptedEngine


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "state")


def test_what_a_gateway_tells_is_what_its_engine_says() -> None:
    engine = ScriptedEngine(lambda request: [])
    with start_gateway(engine) as gateway:
        report = fetch_report(gateway.url, gateway.token)
        assert (report.model, report.health) == (engine.model, "ok")
        assert report.snapshot is not None
        ours = engine.stats()
        assert plain(report.snapshot) | {"time": 0} == plain(ours) | {"time": 0}
        assert type(report.snapshot.pools[0]) is PoolStats
        assert 0 <= report.age_s < 30
        engine.health_now = "failed"
        assert fetch_report(gateway.url + "/v1", gateway.token).health == "failed"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_the_figures_need_the_token(token: str | None) -> None:
    with (
        start_gateway(ScriptedEngine(lambda request: [])) as gateway,
        pytest.raises(ConfigError, match="FTAGENT_TOKEN"),
    ):
        fetch_report(gateway.url, token)


def test_nothing_there_is_said() -> None:
    with pytest.raises(EngineError, match="not reachable"):
        fetch_report("http://127.0.0.1:9", None)


def filled(kind: Any) -> Any:
    """A value of `kind` in which nothing is left at its default."""
    plain_values: dict[Any, Any] = {int: 7, float: 2.5, str: "words", bool: True}
    if kind in plain_values:
        return plain_values[kind]
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(filled(argument) for argument in arguments if argument is not Ellipsis)
    if arguments:  # a choice: of words, or of a type and None
        first = arguments[0]
        return first if isinstance(first, str) else filled(first)
    return kind(**{name: filled(hint) for name, hint in get_type_hints(kind).items()})


def test_every_field_survives_the_way_over_json() -> None:
    snapshot = filled(Snapshot)
    assert isinstance(snapshot.experts, ExpertStats)
    assert build(Snapshot, json.loads(json.dumps(plain(snapshot)))) == snapshot


def test_fields_of_a_newer_gateway_are_left_out() -> None:
    value = plain(ScriptedEngine(lambda request: []).stats()) | {"invented": 1}
    assert build(Snapshot, value).step == 0
    with pytest.raises(TypeError):
        build(Snapshot, [1])


def test_a_gateway_is_found_while_it_runs() -> None:
    assert announced() == []
    with announce("http://127.0.0.1:1", "secret", "demo"):
        (note,) = announced()
        assert (note.url, note.token, note.model, note.pid) == (
            "http://127.0.0.1:1",
            "secret",
            "demo",
            os.getpid(),
        )
        (file,) = (paths.state_dir() / "engines").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert announced() == []


def test_the_note_of_one_that_was_killed_is_removed() -> None:
    with announce("http://127.0.0.1:1", None, "demo"):
        (note,) = announced()
        gone = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
        )
        other = asdict(note) | {"pid": int(gone.stdout)}
        left = paths.state_dir() / "engines" / "left.json"
        left.write_text(json.dumps(other))
        (paths.state_dir() / "engines" / "broken.json").write_text("{")
        assert announced() == [note]
        assert not left.exists()


def test_a_state_directory_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: Path("/proc/nowhere"))
    with announce("http://127.0.0.1:1", None, "demo"):
        assert announced() == []


def test_asking_needs_no_web_framework() -> None:
    script = "import sys, ftagent.gateway.client; print('fastapi' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.split() == ["False", "False"]

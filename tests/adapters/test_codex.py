from __future__ import annotations

import itertools
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.codex import ADAPTER


@pytest.fixture
def order(tmp_path: Path) -> Order:
    target = Target("http://127.0.0.1:5", "t0ken", "demo", 65536)
    return Order(("/bin/codex",), target, tmp_path, Path('/a/"b" \\ 😀.d'), task="do it", unattended=True)


def configured(order: Order) -> dict[str, Any]:
    """What the overrides on the command line come to, read by the standard library."""
    words = ADAPTER.prepare(order).arguments
    overrides = [after for word, after in itertools.pairwise(words) if word == "-c"]
    return tomllib.loads("\n".join(overrides))


def test_the_overrides_are_toml(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ü 😀"))
    told = configured(order)
    assert told["model_provider"] == "ftagent"
    assert told["model_providers"]["ftagent"]["base_url"] == "http://127.0.0.1:5/v1"
    assert told["model_providers"]["ftagent"]["wire_api"] == "responses"
    assert told["model_context_window"] == 65536
    assert told["model_auto_compact_token_limit"] == 65536 - 16384
    assert told["projects"] == {'/a/"b" \\ 😀.d': {"trust_level": "trusted"}}
    policy = told["shell_environment_policy"]
    assert policy == {"exclude": ["CODEX_ENGINE_KEY"], "set": {"HOME": "/home/ü 😀"}}
    assert told["features"]["daemon_auto_start"] is False


def test_lean_has_instructions_of_its_own(order: Order) -> None:
    assert "model_instructions_file" not in configured(order)
    told = configured(replace(order, lean=True))
    assert "exec_command" in Path(told["model_instructions_file"]).read_text("utf-8")
    assert told["features"]["multi_agent"] is False


def test_it_works_in_a_sandbox_where_nobody_can_be_asked(order: Order) -> None:
    words = ADAPTER.prepare(replace(order, unattended=False)).arguments
    assert words[words.index("--sandbox") + 1] == "read-only"
    assert "--dangerously-bypass-approvals-and-sandbox" not in words
    free = ADAPTER.prepare(order).arguments
    assert "--dangerously-bypass-approvals-and-sandbox" in free
    assert "--sandbox" not in free

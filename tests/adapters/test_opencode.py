from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.opencode import ADAPTER


@pytest.fixture
def order(tmp_path: Path) -> Order:
    directory = tmp_path / "state"
    directory.mkdir()
    target = Target("http://127.0.0.1:5", "t0ken", "org/model", 65536)
    return Order(("/bin/opencode",), target, directory, tmp_path, task="do it", unattended=True)


def configured(order: Order) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ADAPTER.prepare(order).environment["OPENCODE_CONFIG_CONTENT"])
    return told


def test_the_small_model_is_the_same_engine(order: Order) -> None:
    told = configured(order)
    assert told["model"] == told["small_model"] == "ftagent/org/model"
    assert told["enabled_providers"] == ["ftagent"]
    provider = told["provider"]["ftagent"]
    assert provider["options"]["apiKey"] == "{env:OPENCODE_ENGINE_KEY}"
    assert provider["models"]["org/model"]["limit"] == {"context": 65536, "output": 16384}


@pytest.mark.parametrize(
    ("change", "permission"),
    [
        ({}, {"*": "allow"}),
        (
            {"unattended": False},
            {"edit": "ask", "bash": "ask", "webfetch": "ask", "external_directory": "ask"},
        ),
        ({"lean": True}, {"*": "deny", "read": "allow", "edit": "allow", "bash": "allow"}),
        (
            {"lean": True, "unattended": False},
            {"*": "deny", "read": "allow", "edit": "ask", "bash": "ask"},
        ),
    ],
)
def test_permissions(order: Order, change: dict[str, Any], permission: dict[str, str]) -> None:
    told = configured(replace(order, **change))["permission"]
    assert list(told.items()) == list(permission.items()), "the last rule that fits counts"


def test_the_plugins_package_seems_to_be_there(order: Order) -> None:
    ADAPTER.prepare(order)
    directory = order.directory / "config" / "opencode"
    assert (directory / "node_modules").is_dir()
    for name in ("package.json", "package-lock.json"):
        assert "@opencode-ai/plugin" in (directory / name).read_text("utf-8")


@pytest.mark.parametrize(("plain", "moved", "told"), [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0)])
def test_git_finds_settings_that_are_only_in_the_moved_directory(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: int, moved: int, told: int
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    own = tmp_path / ".config" / "git" / "config"
    if moved:
        own.parent.mkdir(parents=True)
        own.write_text("[user]\n", encoding="utf-8")
    if plain:
        (tmp_path / ".gitconfig").write_text("[user]\n", encoding="utf-8")
    environment = ADAPTER.prepare(order).environment
    assert environment.get("GIT_CONFIG_GLOBAL") == (str(own) if told else None)

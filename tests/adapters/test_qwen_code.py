from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.qwen_code import ADAPTER


@pytest.fixture
def order(tmp_path: Path) -> Order:
    target = Target("http://127.0.0.1:5", "t0ken", "org/model", 65536)
    return Order(("/bin/qwen",), target, tmp_path, tmp_path, task="do it", unattended=True)


def settings(order: Order) -> dict[str, Any]:
    ADAPTER.prepare(order)
    told: dict[str, Any] = json.loads((order.directory / "settings.json").read_text("utf-8"))
    return told


def test_it_is_signed_in_and_asks_for_nothing_beside_the_task(order: Order) -> None:
    told = settings(order)
    assert told["security"] == {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}}
    assert told["memory"] == {"enableManagedAutoMemory": False, "enableManagedAutoDream": False}
    assert told["ui"] == {"enableFollowupSuggestions": False}
    assert told["model"]["generationConfig"]["contextWindowSize"] == 65536


def test_its_limits_of_time_are_raised(order: Order) -> None:
    """By default it gives up after two minutes without a first word."""
    told = ADAPTER.prepare(order).environment
    assert int(told["QWEN_CODE_API_TIMEOUT_MS"]) >= 3_600_000
    assert int(told["QWEN_STREAM_IDLE_TIMEOUT_MS"]) >= 3_600_000


@pytest.mark.parametrize(
    ("change", "mode"), [({}, "yolo"), ({"unattended": False}, "default"), ({"task": None}, "yolo")]
)
def test_the_mode_of_approval(order: Order, change: dict[str, Any], mode: str) -> None:
    words = ADAPTER.prepare(replace(order, **change)).arguments
    assert words[words.index("--approval-mode") + 1] == mode


def test_lean_is_the_shell_alone(order: Order) -> None:
    assert "tools" not in settings(order)
    lean = settings(replace(order, lean=True))
    assert lean["tools"]["core"] == ["run_shell_command"]
    assert set(lean["skills"]["disabledLevels"]) == {"user", "bundled", "extension"}
    assert "--system-prompt" in ADAPTER.prepare(replace(order, lean=True)).arguments

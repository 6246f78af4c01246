from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.pi import ADAPTER


@pytest.fixture
def order(tmp_path: Path) -> Order:
    target = Target("http://127.0.0.1:5", "t0ken", "org/model", 65536)
    return Order(("/bin/pi",), target, tmp_path, tmp_path, task="do it", unattended=True)


def test_the_model_is_described_and_its_key_is_a_variable(order: Order) -> None:
    launch = ADAPTER.prepare(order)
    [provider] = json.loads((order.directory / "models.json").read_text("utf-8"))["providers"].values()
    assert provider["baseUrl"] == "http://127.0.0.1:5/v1"
    assert launch.environment[provider["apiKey"].removeprefix("$")] == "t0ken"
    [model] = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("org/model", 65536, 16384)
    assert launch.arguments[launch.arguments.index("--model") + 1] == "ftagent/org/model"


def test_prompts_are_made_short_before_they_and_a_reply_do_not_fit(order: Order) -> None:
    ADAPTER.prepare(order)
    told = json.loads((order.directory / "settings.json").read_text("utf-8"))
    assert told["compaction"]["reserveTokens"] == 16384
    assert told["compaction"]["keepRecentTokens"] < 65536 - 16384


def test_the_users_own_skills_stay_out(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/u"))
    ADAPTER.prepare(order)
    told = json.loads((order.directory / "settings.json").read_text("utf-8"))
    assert told["skills"] == ["!/home/u/.agents/skills/**"]


def test_with_ask_there_are_only_tools_that_change_nothing(order: Order) -> None:
    words = ADAPTER.prepare(replace(order, unattended=False)).arguments
    tools = set(words[words.index("--tools") + 1].split(","))
    assert tools
    assert not tools & {"bash", "edit", "write"}
    for change in (order, replace(order, task=None, unattended=False)):
        assert "--tools" not in ADAPTER.prepare(change).arguments

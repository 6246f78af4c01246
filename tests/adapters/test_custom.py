from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.custom import ADAPTER
from ftagent.errors import ConfigError


@pytest.fixture
def order(tmp_path: Path) -> Order:
    target = Target("http://127.0.0.1:5", "t0ken", "demo", 65536)
    return Order(("/bin/x",), target, tmp_path, tmp_path, task="do it", unattended=True)


def test_both_protocols_are_in_the_environment(order: Order) -> None:
    told = ADAPTER.prepare(replace(order, task=None)).environment
    assert (told["OPENAI_BASE_URL"], told["OPENAI_API_KEY"]) == ("http://127.0.0.1:5/v1", "t0ken")
    assert (told["ANTHROPIC_BASE_URL"], told["ANTHROPIC_API_KEY"]) == ("http://127.0.0.1:5", "t0ken")
    assert told["OPENAI_MODEL"] == told["ANTHROPIC_MODEL"] == "demo"


def test_marks_are_filled_where_the_user_wrote_them(order: Order) -> None:
    order = replace(order, task="use {url}", arguments=("--m=openai/{model}", "{task}", "{context}", "{x}"))
    assert ADAPTER.prepare(order).arguments == ("/bin/x", "--m=openai/demo", "use {url}", "65536", "{x}")


def test_a_task_needs_its_place_and_a_place_its_task(order: Order) -> None:
    with pytest.raises(ConfigError, match=r"write \{task\} among the arguments"):
        ADAPTER.prepare(order)
    with pytest.raises(ConfigError, match="--ask"):
        ADAPTER.prepare(replace(order, unattended=False, arguments=("{task}",)))
    with pytest.raises(ConfigError, match="needs -p TASK"):
        ADAPTER.prepare(replace(order, task=None, arguments=("{task}",)))

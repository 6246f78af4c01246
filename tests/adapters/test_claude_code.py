from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftagent.adapters.base import Order, Target
from ftagent.adapters.claude_code import ADAPTER
from ftagent.errors import ConfigError


@pytest.fixture
def order(tmp_path: Path) -> Order:
    directory = tmp_path / "state"
    directory.mkdir()
    target = Target("http://127.0.0.1:5", "t0ken", "demo", 65536)
    return Order(("/bin/claude",), target, directory, tmp_path / "project", task="do it", unattended=True)


def settings_of(arguments: tuple[str, ...]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(arguments[arguments.index("--settings") + 1]).read_text("utf-8"))
    return loaded


def test_the_engine_is_told_in_the_environment_and_again_in_the_settings(order: Order) -> None:
    launch = ADAPTER.prepare(order)
    told = launch.environment
    assert told["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:5"
    assert told["ANTHROPIC_AUTH_TOKEN"] == "t0ken"
    assert told["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert told["CLAUDE_CONFIG_DIR"] == str(order.directory)
    assert {told[name] for name in told if re.fullmatch(r"ANTHROPIC(_DEFAULT_\w+)?_MODEL", name)} == {"demo"}
    repeated = settings_of(launch.arguments)["env"]
    assert repeated.items() <= told.items()
    assert {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK"} <= repeated.keys()
    assert told["CLAUDE_CODE_USE_BEDROCK"] == told["ANTHROPIC_API_KEY"] == ""


def test_the_token_stands_in_no_argument_and_in_no_readable_file(order: Order) -> None:
    launch = ADAPTER.prepare(order)
    assert not any("t0ken" in argument for argument in launch.arguments)
    written = [path for path in order.directory.iterdir() if "t0ken" in path.read_text("utf-8")]
    assert written == list(launch.scratch)
    assert all(path.stat().st_mode & 0o077 == 0 for path in order.directory.iterdir())


@pytest.mark.parametrize(
    ("change", "present", "absent"),
    [
        ({}, ["--dangerously-skip-permissions"], ["--output-format", "--tools"]),
        ({"unattended": False}, [], ["--dangerously-skip-permissions"]),
        ({"events": True}, ["--output-format", "stream-json", "--verbose"], []),
        ({"lean": True}, ["--tools", "Bash,Read,Write,Edit"], []),
        ({"task": None, "unattended": False}, [], ["-p", "--dangerously-skip-permissions"]),
        ({"arguments": ("--resume", "x")}, ["--resume", "x"], []),
    ],
)
def test_the_command_line(
    order: Order, change: dict[str, Any], present: list[str], absent: list[str]
) -> None:
    arguments = list(ADAPTER.prepare(replace(order, **change)).arguments)
    assert arguments[0] == "/bin/claude"
    assert all(argument in arguments for argument in present)
    assert not any(argument in arguments for argument in absent)


def test_a_task_that_looks_like_a_flag_stays_a_task(order: Order) -> None:
    assert ADAPTER.prepare(replace(order, task="--help")).arguments[-3:] == ("-p", "--", "--help")


def test_a_sandbox_is_claimed_only_where_root_skips_permissions(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ADAPTER.prepare(order).environment["IS_SANDBOX"] == "1"
    assert "IS_SANDBOX" not in ADAPTER.prepare(replace(order, unattended=False)).environment
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "IS_SANDBOX" not in ADAPTER.prepare(order).environment


def test_the_first_start_is_seeded_and_later_state_is_kept(order: Order) -> None:
    file = order.directory / ".claude.json"
    ADAPTER.prepare(order)
    seeded = json.loads(file.read_text("utf-8"))
    assert seeded["hasCompletedOnboarding"] is True
    assert seeded["projects"][str(order.project)]["hasTrustDialogAccepted"] is True
    seeded["theme"], seeded["numStartups"] = "light", 3
    file.write_text(json.dumps(seeded), encoding="utf-8")
    ADAPTER.prepare(order)
    assert json.loads(file.read_text("utf-8")) == seeded


def test_a_damaged_state_file_is_seeded_anew(order: Order) -> None:
    (order.directory / ".claude.json").write_text('{"hasCompl', encoding="utf-8")
    ADAPTER.prepare(order)
    assert json.loads((order.directory / ".claude.json").read_text("utf-8"))["hasCompletedOnboarding"] is True


def test_a_full_disk_leaves_nothing_half_written(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(ConfigError, match="No space left on device; set XDG_STATE_HOME"):
        ADAPTER.prepare(order)
    assert list(order.directory.iterdir()) == []


def test_a_small_context_leaves_room_for_the_prompt(order: Order) -> None:
    told = ADAPTER.prepare(replace(order, target=replace(order.target, context=4096))).environment
    assert told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1024"


def test_volatile_spans_are_patterns_that_match_what_they_name() -> None:
    by_place = {span.where: re.compile(span.pattern, re.MULTILINE) for span in ADAPTER.volatile}
    assert by_place["system[0]"].search("x-anthropic-billing-header: cc_version=2.1.332.abc;")
    assert by_place["system"].search("You have a persistent file-based memory at `/tmp/x/memory/`.")
    assert by_place["messages[0]"].search("context:\n# gitStatus\nThis is")

"""The host's keys: the prefix, what follows it, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftagent.errors import ConfigError
from ftagent.tui.host_keys import ACTIONS, PREFIX_S, HostAction, HostKeys
from ftagent.tui.run import RunApp, busy

PREFIX = ("ctrl+right_square_bracket", "\x1d")


def test_the_prefix_arms_one_key() -> None:
    keys = HostKeys("ctrl+]")
    assert keys.press("q", "q", 0) == "pass"
    assert keys.press(*PREFIX, 1) == "wait"
    action = keys.press("q", "q", 2)
    assert isinstance(action, HostAction)
    assert action.id == "quit"
    assert keys.press("q", "q", 2) == "pass"


def test_the_prefix_twice_is_the_agents() -> None:
    keys = HostKeys("ctrl+]")
    assert [keys.press(*PREFIX, at) for at in (0, 1, 1.5)] == ["wait", "send", "wait"]


def test_it_waits_two_seconds_and_no_longer() -> None:
    keys = HostKeys("ctrl+]")
    keys.press(*PREFIX, 0)
    assert keys.press("q", "q", PREFIX_S) == "pass"


def test_an_unknown_key_behind_the_prefix_is_nobodys() -> None:
    keys = HostKeys("ctrl+]")
    keys.press(*PREFIX, 0)
    assert keys.press("ctrl+q", "\x11", 1) == "unknown"


@given(
    st.sampled_from(
        ["escape", "ctrl+c", "ctrl+q", "ctrl+p", "tab", "shift+tab", "f2", "shift+f1", "ctrl+f12", "a"]
    )
)
def test_all_other_keys_pass(key: str) -> None:
    assert HostKeys("ctrl+]").press(key, None, 0) == "pass"


@pytest.mark.parametrize(
    ("written", "pressed", "shown"),
    [
        ("ctrl+]", "ctrl+right_square_bracket", "^]"),
        ("ctrl+\\", "ctrl+backslash", "^\\"),
        ("ctrl+space", "ctrl+@", "^Space"),
        ("Ctrl+B", "ctrl+b", "^B"),
        ("f10", "f10", "F10"),
    ],
)
def test_the_prefix_as_people_write_it(written: str, pressed: str, shown: str) -> None:
    keys = HostKeys(written)
    assert keys.press(pressed, None, 0) == "wait"
    assert keys.shown_prefix == shown


@pytest.mark.parametrize(
    "written", ["", "q", "shift+a", "alt+x", "f1", "f12", "ctrl+nonsense", "ctrl+alt+b", "f99"]
)
def test_a_key_that_an_agent_needs_is_no_prefix(written: str) -> None:
    with pytest.raises(ConfigError, match="prefix_key"):
        HostKeys(written)


def test_every_action_can_be_done_and_is_in_the_help() -> None:
    lines = HostKeys("ctrl+]").help_lines()
    for action in ACTIONS:
        assert callable(getattr(RunApp, f"action_{action.id}"))
        assert any(action.help == words and f"^] {action.letter}" in keys for keys, words in lines)
    letters = [action.letter for action in ACTIONS]
    assert len(set(letters)) == len(letters)


@pytest.mark.parametrize(
    ("title", "state"),
    [
        ("⠂ Claude Code", True),
        ("⠐ x", True),
        ("◑ Claude Code", True),
        ("✳ Claude Code", False),
        ("vim", None),
        ("", None),
    ],
)
def test_titles_tell_whether_an_agent_works(title: str, state: bool | None) -> None:
    assert busy(title) is state

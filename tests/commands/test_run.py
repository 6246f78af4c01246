from __future__ import annotations

import signal

import pytest

from ftagent.adapters import process
from ftagent.adapters.process import Ended
from ftagent.commands import run


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        (Ended(-9, signal.SIGKILL), 137, "claude-code was ended by SIGKILL"),
        (Ended(-15, None, timed_out=True), 124, "claude-code was stopped after 2 s (--timeout)"),
    ],
)
def test_an_agent_that_did_not_end_by_itself_is_told_of(
    ended: Ended, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "run_headless", lambda *_: ended)
    wish = run.Wish("claude-code", "do it", False, True, None, None, 2, ())
    assert run._headless(wish, ("claude",), {}, None) == code
    assert capsys.readouterr().err == f"ftagent: {words}\n"

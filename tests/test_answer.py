"""`chat -p`: what reaches stdout and stderr, what is kept, and the exit codes."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.answer import Reply, answer_once, combined_prompt, safe_text
from ftagent.conversation import Message, Text, Thinking
from ftagent.engine.api import GenerateRequest
from ftagent.errors import ConfigError, FtError, LoadFailed, PromptTooLong, QueueFull
from ftagent.events import (
    Event,
    Failed,
    Finished,
    Progress,
    TextDelta,
    ThinkingDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from ftagent.sessions import Session, SessionStore
from tests.support.scripted import Script, ScriptedEngine

USAGE = Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=8, reasoning_tokens=1)
GOOD: tuple[Event, ...] = (
    Progress("prefill", 0, 12),
    ThinkingDelta("let me "),
    ThinkingDelta("see"),
    TextDelta("Hel"),
    TextDelta("lo."),
    Finished("stop", USAGE),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    """stdout of `ftagent chat -p ... | true`."""

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return SessionStore(tmp_path).create("scripted")


def answer(
    script: Script, session: Session, *, as_json: bool = False, out: io.StringIO | None = None
) -> tuple[int, str, str, ScriptedEngine]:
    engine = ScriptedEngine(lambda request: script)
    out, err = out or io.StringIO(), io.StringIO()
    code = answer_once(engine, "hi", as_json=as_json, out=out, err=err, session=session)
    return code, out.getvalue(), err.getvalue(), engine


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def stored(session: Session) -> list[Message]:
    return [entry.message for entry in session.messages]


def test_text_only_goes_to_stdout_and_the_turn_is_kept(session: Session) -> None:
    code, out, err, engine = answer(GOOD, session)
    assert (code, out, err) == (0, "Hello.\n", "")
    assert engine.active == 0
    assert stored(session) == [
        Message("user", (Text("hi"),)),
        Message("assistant", (Thinking("let me see"), Text("Hello."))),
    ]


def test_json_lines(session: Session) -> None:
    code, out, err, _ = answer(GOOD, session, as_json=True)
    assert (code, err) == (0, "")
    first, *deltas, last = lines(out)
    assert first == {
        "type": "session",
        "version": 1,
        "id": session.id,
        "model": "scripted",
        "context": 65536,
        "embedded": False,
    }
    assert deltas == [
        {"type": "thinking", "text": "let me "},
        {"type": "thinking", "text": "see"},
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo."},
    ]
    assert last == {
        "type": "finished",
        "reason": "stop",
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 3,
            "cached_tokens": 8,
            "reasoning_tokens": 1,
            "divergence": None,
        },
    }


def test_the_next_answer_sees_the_whole_session(session: Session) -> None:
    answer(GOOD, session)
    engine = ScriptedEngine(lambda request: GOOD)
    answer_once(
        engine, "more", as_json=False, out=io.StringIO(), err=io.StringIO(), session=session, thinking=False
    )
    (request,) = engine.requests
    prompt = request.prompt
    assert not isinstance(prompt, str | Sequence)
    assert [message.text for message in prompt.messages] == ["hi", "Hello.", "more"]
    assert prompt.thinking is False
    assert prompt.tools == ()
    assert request.session == session.id


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PromptTooLong(9000, 8192), 2),
        (QueueFull("try later"), 3),
        (LoadFailed("no shard"), 3),
        (FtError("x"), 1),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_before_the_answer(session: Session, error: FtError, code: int, as_json: bool) -> None:
    returned, out, err, _ = answer([error], session, as_json=as_json)
    assert returned == code
    if as_json:
        assert lines(out)[1:] == [{"type": "error", "message": str(error), "exit_code": code}]
        assert err == ""
    else:
        assert (out, err) == ("", f"ftagent: {error}\n")
    assert session.prompts == ()  # the next answer must not meet the refused prompt again


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fault_midway_keeps_the_partial_answer(session: Session, as_json: bool) -> None:
    code, out, err, _ = answer([TextDelta("Hel"), Failed("out of memory")], session, as_json=as_json)
    assert code == 1
    if as_json:
        assert lines(out)[-1] == {"type": "error", "message": "out of memory", "exit_code": 1}
    else:
        assert (out, err) == ("Hel\n", "ftagent: failed: out of memory\n")
    assert stored(session)[1].text == "Hel"
    assert session.messages[1].stopped


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ([TextDelta("x"), Finished("length", USAGE)], 0, "token limit"),
        ([TextDelta("x"), Finished("cancelled", USAGE)], 1, "stopped"),
        ([ToolCallStart(0, "a", "find"), ToolCallEnd(0), Finished("tool_calls", USAGE)], 0, "the tool find"),
    ],
)
def test_odd_endings_are_said_on_stderr(session: Session, script: Script, code: int, said: str) -> None:
    returned, _, err, _ = answer(script, session)
    assert returned == code
    assert said in err


def test_a_closed_pipe_stops_the_engine_quietly(session: Session) -> None:
    code, _, err, engine = answer(GOOD, session, out=ClosedPipe())
    assert (code, err) == (141, "")
    assert engine.active == 0
    assert engine.closed_early == 1
    assert session.messages[1].stopped


def test_a_terminal_gets_no_control_characters_and_a_pipe_gets_all(session: Session) -> None:
    script: Script = [TextDelta("a\x1b]0;owned\x07b\x9b2Jc\n"), Finished("stop", USAGE)]
    assert answer(script, session, out=Terminal())[1] == "a]0;ownedb2Jc\n"
    assert answer(script, session)[1] == "a\x1b]0;owned\x07b\x9b2Jc\n"


def test_a_record_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    session = SessionStore(tmp_path / "file").create()
    code, out, err, _ = answer(GOOD, session)
    assert (code, out) == (0, "Hello.\n")
    assert err.count("cannot write the session") == 1


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly(session: Session, number: int, expected: int) -> None:
    before = signal.getsignal(number)
    started = threading.Event()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            started.set()
            return super().write(text)

    def interrupt() -> None:
        assert started.wait(20)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        code, out, err, engine = answer([TextDelta("Hel"), 3600.0], session, out=Watched())
    finally:
        thread.join()
    assert (code, out, err) == (expected, "Hel\n", "ftagent: stopped\n")
    assert signal.getsignal(number) == before
    assert engine.closed_early == 1
    assert engine.active == 0
    assert session.messages[1].stopped


@pytest.mark.parametrize(
    ("argument", "piped", "expected"),
    [
        ("explain", "def f(): ...\n", "explain\n\ndef f(): ..."),
        (None, "    indented\n", "    indented"),
        ("alone", "", "alone"),
        ("alone", None, "alone"),
    ],
)
def test_prompts_are_combined(argument: str | None, piped: str | None, expected: str) -> None:
    stdin = Terminal() if piped is None else io.StringIO(piped)
    assert combined_prompt(argument, stdin) == expected


@pytest.mark.parametrize("stdin", [Terminal(), io.StringIO(" \n")])
def test_no_prompt_at_all_is_an_error(stdin: io.StringIO) -> None:
    with pytest.raises(ConfigError, match="no prompt"):
        combined_prompt(None, stdin)


def test_bytes_on_stdin_are_an_error() -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8")
    with pytest.raises(ConfigError, match="stdin is not text"):
        combined_prompt("x", stdin)


def is_safe(character: str) -> bool:
    """By the code charts: no C0 or C1 control but tab and newline, no separator, override or surrogate."""
    code = ord(character)
    if character in "\t\n":
        return True
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return False
    return code not in {0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
def test_safe_text(left: str, right: str) -> None:
    cleaned = safe_text(left + right)
    assert all(is_safe(character) for character in cleaned)
    assert [c for c in cleaned if c != "\n"] == [c for c in left + right if is_safe(c) and c != "\n"]
    assert cleaned == safe_text(left) + safe_text(right)  # so a stream may be cleaned piece by piece


deltas = st.one_of(st.text(max_size=5).map(TextDelta), st.text(max_size=5).map(ThinkingDelta))


@settings(deadline=None)
@given(st.lists(deltas))
def test_a_reply_is_its_deltas_put_together(events: list[TextDelta | ThinkingDelta]) -> None:
    reply = Reply()
    for event in events:
        reply.add(event)
    blocks = reply.message.blocks
    assert reply.message.text == "".join(e.text for e in events if isinstance(e, TextDelta))
    thought = "".join(b.text for b in blocks if isinstance(b, Thinking))
    assert thought == "".join(e.text for e in events if isinstance(e, ThinkingDelta))
    assert all(type(a) is not type(b) for a, b in itertools.pairwise(blocks))


def test_answering_imports_neither_textual_nor_torch() -> None:
    code = "import sys, ftagent.answer; print(sorted({'textual', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unused_request_fields_are_defaults(session: Session) -> None:
    seen: list[GenerateRequest] = []

    def script(request: GenerateRequest) -> Script:
        seen.append(request)
        return GOOD

    answer_once(
        ScriptedEngine(script), "hi", as_json=False, out=io.StringIO(), err=io.StringIO(), session=session
    )
    assert seen[0].sampling.max_tokens is None

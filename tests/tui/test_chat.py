"""The chat screen under Pilot: typing, streaming, stopping, sessions, quitting."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from textual.events import Key, Paste

from ftagent.conversation import Message, Text, Thinking
from ftagent.errors import ConfigError
from ftagent.events import Finished, TextDelta, ThinkingDelta
from ftagent.sessions import NEWEST, SessionStore
from ftagent.tui.chat import ChatApp, run_chat
from ftagent.tui.past import PastAnswer
from ftagent.tui.transcript import Answer, AnswerText, ThinkingText
from tests.support.chat_runner import script_for
from tests.support.scripted import Script, ScriptedEngine
from tests.tui.stage import FOREVER, USAGE, conversation, on_stage, partial

pytestmark = pytest.mark.anyio


async def test_a_typed_message_is_answered_and_kept(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.type("hello there")
        await stage.pilot.press("enter")
        await stage.until(lambda: stage.closing_lines != [] and "in (" in stage.closing_lines[0])
        assert stage.prompts == ["› hello there"]
        assert stage.answers == ["You said **hello there**, message 1, thinking None."]
        assert "You said hello there, message 1" in stage.screen_text()  # rendered, not the source
        assert stage.closing_lines[0].startswith("120 in (96 cached)  7 out  first token 0.0")
        assert stage.app.prompt.text == ""
    session = SessionStore(tmp_path).resume()
    assert [entry.message.role for entry in session.messages] == ["user", "assistant"]
    assert not session.messages[1].stopped


async def test_the_answer_is_shown_while_it_comes(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("the *first* words")) as stage:
        await stage.send("go")
        await stage.until(lambda: "the first words" in stage.screen_text())
        assert stage.app.answering


async def test_waiting_is_shown_before_the_first_token(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("wait")
        await stage.until(lambda: stage.closing_lines == ["reading the prompt… 512 of 2,048 tokens"])


async def test_escape_stops_at_once_and_keeps_the_partial_answer(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("half an ans")) as stage:
        await stage.send("go")
        await stage.until(lambda: stage.answers == ["half an ans"])
        await stage.pilot.press("escape")
        await stage.until(lambda: stage.closing_lines == ["■ stopped"] and stage.engine.active == 0)
        assert stage.engine.closed_early == 1
        assert not stage.app.answering
        assert stage.app.session.messages[1].stopped
        await stage.send("again")
        await stage.until(lambda: len(stage.engine.requests) == 2)
        texts = [message.text for message in conversation(stage.engine.requests[1]).messages]
        assert texts == ["go", "half an ans", "again"]


async def test_escape_before_any_word_gives_the_prompt_back(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("wait for it")
        await stage.until(lambda: stage.engine.active == 1)
        await stage.pilot.press("escape")
        await stage.until(lambda: stage.app.prompt.text == "wait for it")
        assert stage.app.session.messages == ()
        assert stage.closing_lines == ["■ stopped"]


async def test_a_refused_prompt_is_given_back_and_forgotten(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("long story")
        await stage.until(lambda: stage.app.prompt.text == "long story")
        assert stage.closing_lines[0].startswith("✕ prompt is too long: 9000 tokens > 8192")
        await stage.ask("hello")
        (message,) = conversation(stage.engine.requests[-1]).messages
        assert message.text == "hello"


async def test_a_fault_midway_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.ask("fail")
        assert stage.answers == ["partial"]
        assert stage.closing_lines == ["■ failed: the worker died"]
        assert stage.app.session.messages[1].stopped
        await stage.ask("hello")
        assert stage.answers[1].startswith("You said **hello**")


async def test_a_second_message_waits_for_the_first(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("x")) as stage:
        await stage.send("one")
        await stage.until(lambda: stage.engine.active == 1)
        await stage.send("two")
        await stage.until(lambda: stage.footer == "still answering; Esc stops it")
        assert stage.app.prompt.text == "two"
        assert len(stage.engine.requests) == 1


async def test_thinking_is_folded_to_a_line_and_unfolds(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.ask("think")
        thought = stage.app.query_one(ThinkingText)
        assert thought.collapsed
        assert str(thought.title).startswith("Thought for 0.")
        assert str(thought.title).endswith("s, 3 tokens")
        assert "deep thoughts" not in stage.screen_text()
        await stage.pilot.press("ctrl+o")
        await stage.until(lambda: "deep thoughts" in stage.screen_text())
        await stage.pilot.press("ctrl+o")
        await stage.until(lambda: "deep thoughts" not in stage.screen_text())
        assert stage.answers == ["So be it."]
        assert stage.app.session.messages[1].message.blocks[0] == Thinking("deep thoughts")


async def test_an_answer_reads_the_same_when_it_is_past(tmp_path: Path) -> None:
    text = "# Title\n\nSome **bold** and `code`.\n\n- one\n- two\n\n```python\nprint(1)\n```\n"
    text += "\n| a | b |\n|--|--|\n| 1 | 2 |"
    script: Script = [ThinkingDelta("deep thoughts"), TextDelta(text), Finished("stop", USAGE)]
    async with on_stage(tmp_path, lambda request: script, size=(100, 60)) as stage:
        await stage.ask("go")
        await stage.until(lambda: "10 in" in stage.closing_lines[0])
        fresh = stage.screen_text()
        assert stage.app.query(Answer)
        await stage.ask("again")
        await stage.until(
            lambda: len(stage.app.query(PastAnswer)) == 1 and stage.screen_text().count("Title") == 2
        )
        past = stage.screen_text().split("› again")[0]
        for word in (
            "Thought for 0.0 s",
            "Title",
            "Some bold and code.",
            "• one",
            "• two",
            "print(1)",
            "10 in (0",
        ):
            assert word in fresh
            assert word in past
        assert "deep thoughts" not in past
        await stage.pilot.press("ctrl+o")
        await stage.until(lambda: stage.screen_text().count("deep thoughts") == 2)
        await stage.pilot.resize_terminal(40, 80)
        await stage.until(
            lambda: "deep thoughts" in stage.screen_text() and "phase" not in stage.screen_text()
        )
        await stage.pilot.mouse_down(stage.app.query_one(PastAnswer), offset=(2, 1))
        await stage.pilot.hover(stage.app.query_one(PastAnswer), offset=(5, 1))
        await stage.pilot.mouse_up(stage.app.query_one(PastAnswer), offset=(5, 1))
        await stage.pilot.press("ctrl+c")
        assert stage.app.clipboard == "deep"


async def test_unfolded_thinking_streams(tmp_path: Path) -> None:
    script: Script = [ThinkingDelta("step one"), FOREVER]
    async with on_stage(tmp_path, lambda request: script) as stage:
        await stage.pilot.press("ctrl+o")
        await stage.send("go")
        await stage.until(
            lambda: "step one" in stage.screen_text() and "Thinking… 0 s" in stage.screen_text()
        )


@pytest.mark.parametrize("key", ["shift+enter", "ctrl+j"])
async def test_messages_may_have_lines(tmp_path: Path, key: str) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.type("one")
        await stage.pilot.press(key)
        await stage.type("two")
        assert stage.app.prompt.text == "one\ntwo"
        assert stage.app.prompt.size.height == 2
        await stage.pilot.press("enter")
        await stage.until(lambda: len(stage.engine.requests) == 1)
        assert conversation(stage.engine.requests[0]).messages[0].text == "one\ntwo"


async def test_a_paste_of_lines_is_not_sent(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        stage.app.post_message(Paste("def f():\n    return 1\n"))
        await stage.until(lambda: stage.app.prompt.text == "def f():\n    return 1\n")
        assert stage.engine.requests == []


async def test_keys_that_come_in_one_burst_keep_their_order(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("x")) as stage:
        for key in ["a", "b", "enter", "c", "up"]:  # all in the queue before the first is handled
            stage.app.post_message(Key(key, key if len(key) == 1 else None))
        await stage.until(lambda: stage.app.prompt.text == "ab")
        assert conversation(stage.engine.requests[0]).messages[0].text == "ab"
        await stage.pilot.press("down")
        assert stage.app.prompt.text == "c"


async def test_an_empty_prompt_is_not_sent(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("  \n ")
        await stage.pilot.pause()
        assert stage.engine.requests == []


async def test_up_and_down_walk_the_history_and_lines_first(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.ask("first")
        await stage.ask("second\nlines")
        await stage.type("draft")
        await stage.pilot.press("up")
        assert stage.app.prompt.text == "second\nlines"
        await stage.pilot.press("up")  # within the lines
        assert stage.app.prompt.text == "second\nlines"
        await stage.pilot.press("up")
        assert stage.app.prompt.text == "first"
        await stage.pilot.press("up")
        assert stage.app.prompt.text == "first"
        await stage.pilot.press("down", "down")
        assert stage.app.prompt.text == "draft"


async def test_resume_shows_and_sends_the_whole_session(tmp_path: Path) -> None:
    old = SessionStore(tmp_path).create("scripted")
    said = [
        Message("user", (Text("early question"),)),
        Message("assistant", (Thinking("hm"), Text("early **answer**"))),
    ]
    old.append(said[0])
    old.append(said[1], stopped=True)
    async with on_stage(tmp_path, session=SessionStore(tmp_path).resume(old.id)) as stage:
        await stage.until(lambda: "early answer" in stage.screen_text())
        assert stage.prompts == ["› early question"]
        assert stage.closing_lines == ["■ stopped"]
        await stage.pilot.press("up")
        assert stage.app.prompt.text == "early question"
        await stage.ask("and now?")
        assert conversation(stage.engine.requests[0]).messages == (
            *said,
            Message("user", (Text("and now?"),)),
        )
        assert stage.app.session.id == old.id


async def test_long_sessions_are_shown_from_their_end(tmp_path: Path) -> None:
    old = SessionStore(tmp_path).create("scripted")
    for number in range(110):
        old.append(Message("user", (Text(f"line {number}"),)))
    async with on_stage(tmp_path, session=old) as stage:
        await stage.until(lambda: len(stage.prompts) == 100)
        assert stage.prompts[0] == "› line 10"
        assert stage.remarks == ["10 earlier messages are not shown; they are still in the context"]


async def test_ctrl_c_clears_then_quits(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.type("some")
        await stage.pilot.press("ctrl+c")
        assert stage.app.prompt.text == ""
        assert stage.footer == "Ctrl+C again quits"
        await stage.pilot.press("ctrl+c")
    assert stage.app.return_value == 0


async def test_ctrl_c_stops_the_answer_first(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("x")) as stage:
        await stage.send("go")
        await stage.until(lambda: stage.answers == ["x"])
        await stage.pilot.press("ctrl+c")
        await stage.until(lambda: stage.closing_lines == ["■ stopped"] and stage.engine.active == 0)


async def test_ctrl_c_copies_what_is_selected(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.type("abc")
        await stage.pilot.press("shift+left", "shift+left", "ctrl+c")
        assert stage.app.clipboard == "bc"
        assert stage.app.prompt.text == "abc"
        await stage.pilot.press("right", "ctrl+c")
        await stage.ask("hello")
        text = stage.app.query_one(AnswerText)
        await stage.pilot.mouse_down(text, offset=(0, 0))
        await stage.pilot.hover(text, offset=(7, 0))
        await stage.pilot.mouse_up(text, offset=(7, 0))
        await stage.pilot.press("ctrl+c")
        assert stage.app.clipboard == "You said"
        assert stage.app.is_running


async def test_many_sessions_are_listed_from_the_newest(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for number in range(33):
        store.create().append(Message("user", (Text(f"prompt {number}"),)))
    async with on_stage(tmp_path) as stage:
        await stage.send("/sessions")
        await stage.until(lambda: len(stage.remarks) == 1)
        lines = stage.remarks[0].splitlines()
        assert lines[0].endswith("prompt 32")
        assert lines[-1] == f"and 3 older ones in {tmp_path}"
        assert len(lines) == 31


async def test_ctrl_d_quits_only_when_empty(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.type("ab")
        await stage.pilot.press("left", "ctrl+d")
        assert stage.app.prompt.text == "a"
        await stage.pilot.press("backspace", "ctrl+d")
    assert stage.app.return_value == 0


async def test_quitting_midway_stops_the_engine_and_keeps_what_came(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("half")) as stage:
        await stage.send("go")
        await stage.until(lambda: stage.answers == ["half"])
        await stage.send("/exit")
    assert stage.engine.active == 0
    kept = SessionStore(tmp_path).resume().messages
    assert [entry.message.text for entry in kept] == ["go", "half"]
    assert kept[1].stopped


async def test_the_framework_keys_for_quit_and_palette_do_nothing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.pilot.press("ctrl+q", "ctrl+p")
        assert stage.app.is_running
        assert len(stage.app.screen_stack) == 1
        await stage.ask("hello")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("missing", ["stdin", "stdout", "stderr"])
def test_no_terminal_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO() if name == missing else _Terminal())
    with pytest.raises(ConfigError, match=f"{missing} is none.*chat -p"):
        run_chat(ScriptedEngine(script_for), store=SessionStore(tmp_path))


def test_a_dumb_terminal_and_unknown_sessions_are_clear_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, _Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(ConfigError, match=r"TERM=dumb.*chat -p"):
        run_chat(ScriptedEngine(script_for), store=SessionStore(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    for wanted in ("", NEWEST, "2026"):
        with pytest.raises(ConfigError, match="no session to resume"):
            run_chat(ScriptedEngine(script_for), store=SessionStore(tmp_path), resume=wanted)


def test_every_action_has_its_method() -> None:
    from ftagent.tui.actions import ACTIONS
    from ftagent.tui.prompt import PromptInput

    for action in ACTIONS:
        if action.scope == "prompt":
            assert callable(getattr(PromptInput, f"do_{action.id}"))
        elif action.keys:
            assert callable(getattr(ChatApp, f"action_{action.id}"))
        else:
            assert hasattr(ChatApp, f"command_{action.id}") or hasattr(ChatApp, f"action_{action.id}")

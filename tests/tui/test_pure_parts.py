"""The parts of the chat without widgets: pace, prompt history, a turn's times and words, export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import Message, Text, Thinking
from ftagent.errors import ConfigError, QueueFull
from ftagent.events import Failed, Finished, Progress, TextDelta, ThinkingDelta, Usage
from ftagent.sessions import SessionStore
from ftagent.tui.export import as_markdown, last_answer, write_export
from ftagent.tui.pacing import LONGEST_S, SHORTEST_S, Pacer
from ftagent.tui.prompt_history import PromptHistory
from ftagent.tui.turn import Turn


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=20))
def test_the_pace_keeps_drawing_to_its_share(costs: list[float]) -> None:
    used = [0.0]
    pacer = Pacer(share=0.04, cpu=lambda: used[0])
    for cost in costs:
        used[0] += cost
        pause = pacer.pause_s()
        assert SHORTEST_S <= pause <= LONGEST_S
        if SHORTEST_S < pause < LONGEST_S:
            assert cost / pause == pytest.approx(0.04)
        elif pause == SHORTEST_S:
            assert cost / pause <= 0.04 + 1e-9


class _History:
    """The same by the book: a list with the draft at its end, and an index."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.index = 0
        self.draft = ""


@settings(deadline=None)
@given(st.lists(st.sampled_from(["up", "down", "a", "b", "c"]), max_size=30))
def test_prompt_history_against_a_list(steps: list[str]) -> None:
    history, model, typed = PromptHistory(), _History(), ""
    for step in steps:
        if step == "up":
            if model.index == len(model.lines):
                model.draft = typed
            expected = model.lines[model.index - 1] if model.index else None
            model.index = max(0, model.index - 1)
            got = history.older(typed)
        elif step == "down":
            at_end = model.index == len(model.lines)
            model.index = min(len(model.lines), model.index + 1)
            expected = None if at_end else [*model.lines, model.draft][model.index]
            got = history.newer()
        else:
            history.add(step)
            if model.lines[-1:] != [step]:
                model.lines.append(step)
            model.index, typed = len(model.lines), "draft"
            continue
        assert got == expected
        typed = typed if got is None else got


def ticks(*times: float) -> Iterator[float]:
    yield from times
    while True:
        yield times[-1]


def turn_at(times: Iterable[float]) -> Turn:
    clock = iter(times)
    return Turn("prompt", clock=lambda: next(clock))


def test_a_turn_measures_first_token_and_thinking() -> None:
    turn = turn_at(ticks(10.0, 10.5, 12.75, 99.0))
    turn.add(Progress("prefill", 3, 9))
    assert turn.waiting_line() == "reading the prompt… 3 of 9 tokens"
    turn.add(ThinkingDelta("hm"))  # at 10.5
    turn.add(ThinkingDelta("mm"))
    turn.add(TextDelta("so"))  # at 12.75
    assert turn.thinking_title() == "Thought for 2.2 s"
    turn.add(Finished("stop", Usage(100, 20, cached_tokens=64, reasoning_tokens=1234)))
    assert turn.thinking_title() == "Thought for 2.2 s, 1,234 tokens"
    assert turn.figures.first_token_s == 0.5
    assert turn.closing_line() == "100 in (64 cached)  20 out  first token 0.50 s"


def test_what_comes_after_a_stop_is_not_part_of_the_answer() -> None:
    turn = Turn("prompt")
    turn.add(TextDelta("kept"))
    turn.stopped = True
    turn.add(TextDelta(" lost"))
    assert turn.reply.message.text == "kept"
    assert turn.closing_line() == "■ stopped"


def test_a_turn_without_an_answer_says_why() -> None:
    turn = Turn("prompt")
    assert turn.waiting_line() == "waiting… 0 s"
    turn.error = QueueFull("too many requests wait")
    assert turn.closing_line() == "✕ too many requests wait"
    failed = Turn("prompt")
    failed.add(Failed("no memory"))
    assert failed.closing_line() == "■ failed: no memory"


def test_export_is_what_was_said(tmp_path: Path) -> None:
    session = SessionStore(tmp_path / "s").create("demo")
    assert last_answer(session.messages) == ""
    session.append(Message("user", (Text("a\x1bq?"),)))
    session.append(Message("assistant", (Thinking("secret"), Text("an answer\n"))), stopped=True)
    expected = f"# Session {session.id}\n\nModel: demo\n\n## You\n\naq?\n\n## Model (stopped)\n\nan answer\n"
    assert as_markdown(session) == expected
    assert last_answer(session.messages) == "an answer\n"
    assert write_export(session, str(tmp_path / "x.md")).read_text() == expected
    with pytest.raises(ConfigError, match="exists; choose another name"):
        write_export(session, str(tmp_path / "x.md"))
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_export(session, str(tmp_path / "none" / "x.md"))

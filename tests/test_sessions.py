"""The history store: what is written comes back, whatever happened to the end of the file."""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.conversation import Message, Text, Thinking
from ftagent.errors import ConfigError, FtError
from ftagent.sessions import NEWEST, Session, SessionStore, default_directory


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str, thinking: str = "") -> Message:
    thought = (Thinking(thinking),) if thinking else ()
    return Message("assistant", (*thought, Text(text)))


def ticking(start: float = 1_796_077_815.0) -> Callable[[], float]:
    """A clock that moves a second each time it is read."""
    count = itertools.count()
    return lambda: start + next(count)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions", ticking())


def messages(session: Session) -> list[Message]:
    return [entry.message for entry in session.messages]


def test_nothing_is_written_before_the_first_message(store: SessionStore) -> None:
    store.create("demo")
    assert not store.directory.exists()
    assert store.summaries() == ()


def test_resume_gives_back_every_block_in_order(store: SessionStore) -> None:
    session = store.create("demo")
    said = [user("what is q*?"), assistant("a split", thinking="hmm"), user("thanks"), assistant("welcome")]
    for message in said:
        session.append(message)
    resumed = store.resume(session.id)
    assert messages(resumed) == said
    assert (resumed.id, resumed.model, resumed.started) == (session.id, "demo", session.started)
    conversation = resumed.conversation(thinking=False)
    assert conversation.messages == tuple(said)  # the thinking of old turns is still there
    assert conversation.thinking is False


def test_a_resumed_session_goes_on_in_the_same_file(store: SessionStore) -> None:
    session = store.create()
    session.append(user("one"))
    store.resume(session.id).append(assistant("two"), stopped=True)
    again = store.resume(session.id)
    assert [message.text for message in messages(again)] == ["one", "two"]
    assert [entry.stopped for entry in again.messages] == [False, True]
    assert len(list(store.directory.iterdir())) == 1


def test_each_message_is_on_disk_when_append_returns(store: SessionStore) -> None:
    session = store.create("demo")
    for count in range(1, 4):
        session.append(user(f"line {count}"))
        lines = [json.loads(line) for line in session.path.read_bytes().split(b"\n") if line]
        assert [line["type"] for line in lines] == ["session"] + ["message"] * count
    assert stat.S_IMODE(session.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


def test_a_cut_anywhere_in_the_last_line_loses_that_line_only(store: SessionStore) -> None:
    session = store.create("demo")
    session.append(user("first"))
    session.append(assistant("zweitens: Größe 🦙"))
    session.append(user("last 🦙"))
    whole = session.path.read_bytes()
    last_line = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(last_line, len(whole) - 1):
        session.path.write_bytes(whole[:cut])
        resumed = store.resume(session.id)
        assert [message.text for message in messages(resumed)] == ["first", "zweitens: Größe 🦙"]


def test_writing_goes_on_after_a_cut_off_line(store: SessionStore) -> None:
    session = store.create("demo")
    session.append(user("first"))
    session.append(assistant("lost"))
    session.path.write_bytes(session.path.read_bytes()[:-9])
    store.resume(session.id).append(user("after the crash"))
    assert [message.text for message in messages(store.resume(session.id))] == ["first", "after the crash"]


def test_lines_that_are_no_records_are_skipped(store: SessionStore, caplog: pytest.LogCaptureFixture) -> None:
    session = store.create("demo")
    session.append(user("good"))
    with session.path.open("ab") as file:
        file.write(b'[]\n{"type":"later"}\n{"type":"message","role":"robot","blocks":[],"time":1}\n')
        file.write(b'{"type":"message","role":"user","blocks":[{"type":"smell"}],"time":1}\nnot json\n')
    assert [message.text for message in messages(store.resume(session.id))] == ["good"]
    assert len(caplog.records) == 5  # one per damaged line


def test_retract_withdraws_the_newest_message_for_good(store: SessionStore) -> None:
    session = store.create()
    session.append(user("kept"))
    session.append(user("withdrawn"))
    session.retract()
    assert session.prompts == ("kept",)
    assert store.resume(session.id).prompts == ("kept",)


def test_the_list_has_the_last_used_first(store: SessionStore) -> None:
    old, new = store.create("a"), store.create("b")
    old.append(user("  first line\nsecond line"))
    new.append(user("newer"))
    assert [row.id for row in store.summaries()] == [new.id, old.id]
    old.append(assistant("yes"))
    old.append(user("more"))
    rows = store.summaries()
    assert [(row.id, row.first_line, row.turns) for row in rows] == [
        (old.id, "first line", 2),
        (new.id, "newer", 1),
    ]
    assert rows[0].started == old.started
    assert store.resume(NEWEST).id == old.id


def test_resume_by_prefix_and_its_errors(store: SessionStore) -> None:
    with pytest.raises(ConfigError, match="no session to resume"):
        store.resume()
    one, two = store.create(), store.create()
    one.append(user("one"))
    two.append(user("two"))
    unique = next(size for size in range(1, len(one.id) + 1) if not two.id.startswith(one.id[:size]))
    assert store.resume(one.id[:unique]).id == one.id
    with pytest.raises(ConfigError, match=f"2 sessions start with '20'.*{one.id}"):
        store.resume("20")
    with pytest.raises(ConfigError, match=re.escape("no session starts with '../../etc/passwd'")):
        store.resume("../../etc/passwd")


def test_other_files_in_the_directory_are_left_alone(store: SessionStore) -> None:
    store.create().append(user("mine"))
    (store.directory / "notes.jsonl").write_text("{}")
    assert len(store.summaries()) == 1


def test_a_directory_that_cannot_be_written_is_an_error_and_the_message_is_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    session = SessionStore(blocked / "sessions").create()
    with pytest.raises(FtError, match="kept in memory only"):
        session.append(user("hello"))
    assert session.prompts == ("hello",)


def test_the_default_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "ftagent" / "sessions"


any_text = st.text(st.characters(codec=None), max_size=40)  # surrogates and controls included


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(any_text, any_text, st.booleans()), min_size=1, max_size=5))
def test_any_text_round_trips(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str, bool]]
) -> None:
    store = SessionStore(tmp_path_factory.mktemp("sessions"))
    session = store.create()
    for text, thinking, stopped in turns:
        session.append(Message("assistant", (Thinking(thinking), Text(text))), stopped=stopped)
    session.append(user("end"))
    resumed = store.resume(session.id)
    assert resumed.messages == session.messages

"""Directories that hold a model already, or something else: what a pull keeps, replaces and refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from ftagent.errors import FtError, LoadFailed, PullFailed
from ftagent.hub import remote, store
from ftagent.hub.pull import Order, pull
from tests.hub.conftest import FIRST, INDEX, NEEDED, SECOND, World, same, visible
from tests.support.hub_server import small_repository


def test_a_new_revision_brings_what_changed_and_removes_what_went(world: World) -> None:
    directory = world.pull().directory
    mine = directory / "notes.txt"
    mine.write_text("mine", encoding="utf-8")
    files = world.repository.files
    third = "model-00003-of-00003.safetensors"
    files[third] = files.pop(SECOND)
    files[INDEX] = json.dumps({"weight_map": {"a": FIRST, "b": third}}).encode()
    done = world.pull(revision="refs/pr/1")
    assert done.fetched == len(files[third]) + len(files[INDEX])
    assert visible(directory) == (NEEDED - {SECOND}) | {third, "notes.txt"}
    record = store.read_record(directory)
    assert record is not None
    assert (record.revision, record.commit) == ("refs/pr/1", world.repository.commit)


def test_a_revision_that_was_asked_for_stays_the_one(world: World) -> None:
    assert world.pull().revision == "main"
    assert world.pull(revision="refs/pr/1").revision == "refs/pr/1"
    earlier = len(world.hub.seen)
    assert world.pull().revision == "refs/pr/1"
    assert world.hub.seen[earlier].path == "/api/models/lab/tiny/revision/refs/pr/1"
    assert world.pull(revision="main").revision == "main"


def test_a_disk_that_fills_meanwhile_is_one_line_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        message = world.refused()
    assert "no room left for config.json (No space left on device)" in message
    assert "goes on where it stopped" in message
    assert same(world, world.pull().directory)


def test_a_place_that_cannot_be_written_is_one_line(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = world.refused(target=tmp_path / "file" / "below")
    assert f"{tmp_path / 'file' / 'below'}: Not a directory" in message
    assert "--to" in message


def test_a_config_of_gigabytes_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SMALL_BYTES", 100)
    size = len(world.repository.files[INDEX])
    assert f"{INDEX} of lab/tiny is no text file: it has {size} bytes" in world.refused()
    assert world.hub.content(INDEX) == []


def test_what_was_changed_here_is_never_overwritten(world: World) -> None:
    directory = world.pull().directory
    template = directory / "chat_template.jinja"
    template.write_text("my own", encoding="utf-8")
    message = world.refused()
    assert f"{template}: is not what lab/tiny has" in message
    assert template.read_text(encoding="utf-8") == "my own"
    template.unlink()
    assert same(world, world.pull().directory)


def test_a_directory_of_ones_own_is_taken_over_file_by_file(world: World, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / FIRST).write_bytes(world.repository.files[FIRST])
    done = world.pull(target=own)
    assert same(world, own)
    assert done.fetched == done.bytes - len(world.repository.files[FIRST])
    assert done.linked
    assert Path(store.model_path("lab/tiny")).resolve() == own
    (own / "other.safetensors").write_bytes(b"x")
    assert "other.safetensors: would be taken for a part of lab/tiny" in world.refused(target=own)


def test_a_directory_is_of_one_repository_and_one_pull(world: World, tmp_path: Path) -> None:
    own = tmp_path / "own"
    world.pull(target=own)
    world.hub.repositories["lab/other"] = small_repository()
    with pytest.raises(PullFailed, match="holds lab/tiny; give another directory"):
        pull(Order("lab/other", target=own, endpoint=world.hub.url), lambda *_: None, world.said.append)
    handle = os.open(own, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert "another pull is writing here" in world.refused(target=own)
    finally:
        os.close(handle)
    file = tmp_path / "file"
    file.touch()
    assert "a file, not a directory" in world.refused(target=file)


@pytest.mark.parametrize("repo", ["../x", "/etc/passwd", "lab/..", "tiny", "lab/tiny/../../x"])
def test_names_that_lead_elsewhere_are_refused_without_a_request(world: World, repo: str) -> None:
    with pytest.raises(FtError, match="write OWNER/NAME") as caught:
        pull(Order(repo, endpoint=world.hub.url), lambda *_: None, world.said.append)
    assert caught.value.exit_code == 2
    assert world.hub.seen == []


def test_progress_grows_to_the_whole(world: World, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    world.repository.cuts[FIRST] = [1_500_000]
    world.repository.ranges = False
    done = pull(
        Order("lab/tiny", endpoint=world.hub.url), lambda *state: told.append(state), world.said.append
    )
    assert told[-1] == ("downloading", done.bytes, done.bytes)
    assert all(0 <= state[1] <= done.bytes for state in told)


def test_model_names_lead_to_directories(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadFailed, match=r"lab/tiny: no such model directory.*`ftagent pull lab/tiny`"):
        store.model_path("lab/tiny")
    directory = world.pull().directory
    assert store.model_path("lab/tiny") == str(directory)
    assert [path for path, _ in store.pulled()] == [directory]
    for same_as_given in ("demo", "/abs/dir", "~/x", "a/b/c", "./lab/tiny", str(directory)):
        assert store.model_path(same_as_given) == same_as_given
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    assert store.model_path("lab/tiny") == "lab/tiny", "a directory of that name comes first"

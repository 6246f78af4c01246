"""Pulls from a hub on the loopback: what arrives, what is asked for, and what is refused before and after."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ftagent.errors import FtError, LoadFailed, PullFailed
from ftagent.hub import fetch, remote, store
from ftagent.hub.pull import Order, Pulled, pull
from tests.support.hub_server import HubServer, Repository, serving, small_repository

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
BESIDE = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
NEEDED = BESIDE | {"chat_template.jinja", INDEX, FIRST, SECOND}


class World(NamedTuple):
    hub: HubServer
    repository: Repository
    said: list[str]

    def pull(self, **order: Any) -> Pulled:
        return pull(Order("lab/tiny", endpoint=self.hub.url, **order), lambda *_: None, self.said.append)

    def refused(self, **order: Any) -> str:
        with pytest.raises(FtError) as caught:
            self.pull(**order)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    monkeypatch.setattr(fetch, "AT_ONCE", 1)  # so that the order of requests is known
    repository = small_repository()
    with serving(repository) as hub:
        yield World(hub, repository, [])


def visible(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.name != ".ftagent"}


def same(world: World, directory: Path) -> bool:
    return all((directory / name).read_bytes() == world.repository.files[name] for name in NEEDED)


def test_all_that_the_loader_needs_arrives_and_nothing_else(world: World, tmp_path: Path) -> None:
    done = world.pull()
    assert done.directory == tmp_path / "data" / "ftagent" / "models" / "lab" / "tiny"
    assert visible(done.directory) == NEEDED
    assert same(world, done.directory)
    assert done.bytes == done.fetched == sum(len(world.repository.files[name]) for name in NEEDED)
    assert (done.files, done.commit, done.linked) == (len(NEEDED), world.repository.commit, True)
    record = json.loads((done.directory / ".ftagent" / "pull.json").read_bytes())
    assert (record["repo"], record["revision"], record["commit"], record["complete"]) == (
        "lab/tiny",
        "main",
        world.repository.commit,
        True,
    )
    assert {path.name for path in (done.directory / ".ftagent").iterdir()} == {"pull.json"}
    asked = {item.path for item in world.hub.seen if "/resolve/" in item.path}
    assert all(f"/resolve/{done.commit}/" in path for path in asked), "not what `main` may be by then"
    assert {path.rpartition("/")[2] for path in asked} == NEEDED


def test_a_second_pull_asks_for_no_content(world: World) -> None:
    world.pull()
    before = len(world.hub.content(FIRST))
    done = world.pull()
    assert done.fetched == 0
    assert len(world.hub.content(FIRST)) == before


def test_the_token_is_the_hubs_own_and_stays_with_the_hub(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.repository.token = "hf_s3cret"
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    assert same(world, world.pull().directory)
    for item in world.hub.seen:
        assert (item.authorization is None) == item.path.startswith("/cdn/"), item.path


def test_a_connection_that_breaks_is_resumed_where_it_broke(world: World) -> None:
    world.repository.cuts[FIRST] = [1_000_000, 500_000, 0]
    done = world.pull()
    assert same(world, done.directory)
    begins = [item.range for item in world.hub.content(FIRST) if item.path.startswith("/cdn")]
    size = len(world.repository.files[FIRST])
    assert begins[0] == f"bytes=0-{size - 1}"
    sent = [int(str(item).removeprefix("bytes=").partition("-")[0]) for item in begins]
    assert sent == sorted(sent)
    assert 0 < sent[1] <= 1_000_000
    assert done.fetched == done.bytes


def test_a_pull_that_failed_goes_on_in_the_next_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TRIES", 1)
    world.repository.cuts[FIRST] = [2_000_000, 0]
    message = world.refused()
    assert FIRST in message
    assert "the same command goes on where it stopped" in message
    directory = store.place("lab/tiny")
    assert not (directory / FIRST).exists()
    (partial,) = (directory / ".ftagent").glob(f"{FIRST}.*.part")
    kept = partial.stat().st_size
    assert 0 < kept <= 2_000_000
    with pytest.raises(LoadFailed, match="`ftagent pull lab/tiny` goes on"):
        store.model_path("lab/tiny")
    earlier = len(world.hub.seen)
    done = world.pull()
    assert same(world, done.directory)
    asked = [item.range for item in world.hub.seen[earlier:] if item.path.endswith(FIRST)]
    assert set(asked) == {f"bytes={kept}-{len(world.repository.files[FIRST]) - 1}"}
    # What had arrived before the break is not fetched again, and the rest of the shard only.
    missing = len(world.repository.files[FIRST]) - kept + len(world.repository.files[SECOND])
    assert done.fetched == missing


def test_a_server_without_ranges_sends_all_of_it_again(world: World) -> None:
    world.repository.ranges = False
    world.repository.cuts[FIRST] = [2_000_000]
    done = world.pull()
    assert same(world, done.directory)
    sent = [item.range for item in world.hub.content(FIRST) if item.path.startswith("/cdn")]
    assert len(sent) == 2


def test_large_files_are_asked_for_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PIECE_BYTES", 1_000_000)
    assert same(world, world.pull().directory)
    asked = [item.range for item in world.hub.content(FIRST) if item.path.startswith("/cdn")]
    assert asked == ["bytes=0-999999", "bytes=1000000-1999999", "bytes=2000000-2999999"]


def test_errors_that_pass_are_tried_again(world: World) -> None:
    world.repository.statuses = {FIRST: [503, 429, 500], INDEX: [502]}
    assert f"{world.hub.url} answered 502; check the connection" in world.refused()
    assert not store.models_dir().exists(), "the index is read before anything is written"
    assert same(world, world.pull().directory)
    assert world.repository.statuses[FIRST] == []


@pytest.mark.parametrize("name", [SECOND, "tokenizer.json"])
def test_content_that_differs_from_the_listing_is_named_and_dropped(world: World, name: str) -> None:
    data = bytearray(world.repository.files[name])
    data[100] ^= 1
    world.repository.sent[name] = bytes(data)
    message = world.refused()
    assert f"{name} of lab/tiny: what arrived is not what the hub lists" in message
    directory = store.place("lab/tiny")
    assert not (directory / name).exists()
    assert not list((directory / ".ftagent").glob(f"{name}*"))
    world.repository.sent.clear()
    assert same(world, world.pull().directory)


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_of_another_size_than_listed_is_named(world: World, ranges: bool, change: int) -> None:
    world.repository.ranges = ranges
    data = world.repository.files[FIRST]
    world.repository.sent[FIRST] = data[:change] if change < 0 else data + b"x"
    assert f"{FIRST} of lab/tiny: what arrived is not what the hub lists" in world.refused()


def test_empty_files_are_files(world: World) -> None:
    world.repository.files["generation_config.json"] = b""
    directory = world.pull().directory
    assert (directory / "generation_config.json").read_bytes() == b""
    world.repository.files["config.json"] = b""
    assert "lab/tiny/config.json: not valid JSON" in world.refused()


def test_a_file_that_is_listed_and_gone_is_named(world: World) -> None:
    world.repository.gone.add(SECOND)
    assert f"does not find {SECOND} of lab/tiny (404)" in world.refused()


def test_a_shard_that_the_index_names_must_be_listed(world: World) -> None:
    del world.repository.files[SECOND]
    message = world.refused()
    assert f"lacks {SECOND!r}" in message
    assert not store.models_dir().exists()


def test_room_is_checked_before_the_first_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_000_000))
    message = world.refused()
    need = sum(len(world.repository.files[name]) for name in NEEDED)
    assert f"needs {need} bytes" in message
    assert "4000000 are free" in message
    assert not store.models_dir().exists()
    assert world.hub.content(FIRST) == []


def test_room_counts_what_is_there_already(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = world.pull().directory
    (directory / SECOND).unlink()
    usage = shutil.disk_usage("/")
    size = len(world.repository.files[SECOND])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size))
    assert world.pull().fetched == size


def test_an_unknown_family_is_refused_from_its_config_alone(world: World) -> None:
    world.repository.files["config.json"] = b'{"model_type": "mamba9"}'
    message = world.refused()
    assert "lab/tiny/config.json: model_type 'mamba9' is not known here; known are qwen3_moe" in message
    assert "--force" in message
    assert {item.path.rpartition("/")[2] for item in world.hub.seen} == {"main", "config.json", INDEX}
    assert not store.models_dir().exists()
    done = world.pull(force=True)
    assert same(world, done.directory)
    assert "mamba9" in world.said[0]


def test_what_is_private_gated_or_not_there_is_one_line_with_what_to_do(world: World) -> None:
    assert f"{world.hub.url} knows no model lab/tiny" not in world.refused(revision="v9")
    assert "lab/tiny has no revision 'v9'" in world.refused(revision="v9")
    world.repository.token = "hf_s3cret"
    message = world.refused()
    assert "knows no model lab/tiny, or it is private (401)" in message
    assert "hf auth login" in message
    world.repository.gated = True
    message = world.refused()
    assert f"lab/tiny is gated: accept its terms at {world.hub.url}/lab/tiny" in message
    assert not store.models_dir().exists()


def test_no_hub_is_one_line(world: World) -> None:
    words = r"127.0.0.1:9 cannot be reached \(.*refused\); check the connection, the proxy and HF_ENDPOINT"
    with pytest.raises(PullFailed, match=words):
        pull(Order("lab/tiny", endpoint="http://127.0.0.1:9"), lambda *_: None, world.said.append)


@pytest.mark.parametrize(
    "page", [b"<html>Log in</html>", b"[]", b"{}", b'{"id": "lab/tiny", "sha": "main", "siblings": []}']
)
def test_a_page_of_something_else_is_no_hub(world: World, page: bytes) -> None:
    world.hub.page = page
    assert f"{world.hub.url} does not answer as a hub does; check HF_ENDPOINT" in world.refused()


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

"""Pulls from a hub on the loopback: what arrives, what is asked for, and what is refused before and after."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ftagent.errors import LoadFailed, PullFailed
from ftagent.hub import fetch, store
from ftagent.hub.pull import Order, pull
from tests.hub.conftest import FIRST, INDEX, NEEDED, SECOND, World, same, visible


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


@pytest.mark.parametrize("outer", [True, False])
def test_weights_that_the_loader_does_not_read_are_refused_from_config_alone(
    world: World, outer: bool
) -> None:
    config = json.loads(world.repository.files["config.json"])
    for method, known in (("gptq", False), ("compressed-tensors", False), ("fp8", True), ("mxfp4", True)):
        quantised = {"quantization_config": {"quant_method": method}}
        config.pop("quantization_config", None)
        changed = {**config, **quantised} if outer else {**config, "text_config": {**config, **quantised}}
        world.repository.files["config.json"] = json.dumps(changed).encode()
        if known:
            world.pull()
            continue
        message = world.refused()
        assert f"quantised by {method!r} are not read, those by fp8 and mxfp4 are; nothing was" in message
        assert not store.models_dir().exists()


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

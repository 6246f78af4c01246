"""Prefixes that leave the pools and come back: from host memory, and from files across restarts."""

from __future__ import annotations

import hashlib
import os
import random
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftagent.engine.context import disk, tiers
from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.disk import VERSION, DiskTier, encode, ordinary, read_segment
from ftagent.engine.context.tiers import Address, Bytes, Contents, Held, HostTier, PrefixStore, Segment
from ftagent.engine.context.tree import token_key
from ftagent.engine.job import Job
from ftagent.engine.steps import LoadedModel
from tests.engine.test_scheduler import Bench, prompt_of, reply
from tests.support.toy import ToyRunner, cold_tokens


class ToyContents:
    """Bytes of the toy's memory."""

    def __init__(self, runner: ToyRunner) -> None:
        self._runner = runner
        self.state_bytes = runner.recurrent.slot_bytes
        self.page_bytes = 8 * runner.kv.page_size

    def read_pages(self, pages: Sequence[int], *, spare: bool) -> Held:
        return Bytes(self._runner._memory[list(pages)].tobytes())

    def write_pages(self, pages: Sequence[int], held: Held, first: int) -> None:
        data = held.view()[first * self.page_bytes : (first + len(pages)) * self.page_bytes]
        assert len(data) == len(pages) * self.page_bytes
        for page, begin in zip(pages, range(0, len(data), self.page_bytes), strict=True):
            assert self._runner.kv.references(page) > 0, "a write into a free page"
            self._runner._memory[page] = array("q", data[begin : begin + self.page_bytes].tobytes())

    def pack(self, snapshot: Any) -> Held:
        return Bytes(int(snapshot).to_bytes(8, "little"))

    def unpack(self, held: Held) -> int:
        return int.from_bytes(held.view(), "little")

    def blank(self, size: int, state: bool) -> Held:
        return Bytes(bytearray(size))

    def on_shortage(self, let_go: Callable[[], bool]) -> None:
        pass


def tiered(
    runner: ToyRunner | LoadedModel,
    disk: Path | None = None,
    *,
    contents: Contents | None = None,
    host: int = 1 << 20,
    anchors: int = 16,
    **limits: int,
) -> Bench:
    bench = Bench(runner, anchors, **limits)
    tier = DiskTier(disk, 1 << 20) if disk else None
    if contents is None:
        assert isinstance(runner, ToyRunner), "what other pages hold is to be given"
        contents = ToyContents(runner)
    store = PrefixStore(contents, runner.kv.page_size, HostTier(host), tier, "toy")
    bench.prefix = PrefixCache(runner.kv, runner.recurrent, anchors, store)
    bench.scheduler.prefix = bench.prefix
    return bench


def agent_job(prompt: list[int], system: int, count: int = 4) -> Job:
    return Job(
        "agent", list(prompt), len(prompt) + count, (system, len(prompt)), agent=True, lasting=(system,)
    )


@pytest.mark.parametrize("size", [4, 16])
def test_what_conversations_lose_comes_back_from_host_memory(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three conversations in pages for one: each turn finds all of the last one."""
    bench = tiered(ToyRunner(pages=200 // size, page_size=size, context=190), chunk_tokens=64)
    monkeypatch.setattr(tiers, "LEAST_GAIN", 1)
    talks = [prompt_of(seed, 60) for seed in range(3)]
    for turn in range(4):
        for index, history in enumerate(talks):
            job = agent_job(history, 40)
            bench.scheduler.submit(job)
            bench.drain()
            assert job.cached == (len(history) - 8 if turn else 0)
            assert reply(job) == cold_tokens(history, 4)
            talks[index] = [*job.tokens, *prompt_of(100 + 10 * turn + index, 7)]
    assert bench.prefix._store is not None
    assert bench.prefix._store.restored_tokens > 200


@pytest.mark.parametrize("seed", range(12))
def test_warm_equals_cold_when_everything_comes_and_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools far too small for what goes on, host memory too: evictions and restores at every turn."""
    dice = random.Random(seed)
    monkeypatch.setattr(tiers, "LEAST_GAIN", dice.choice([1, 32]))
    size = dice.choice([4, 8])
    runner = ToyRunner(pages=320 // size, page_size=size, slots=3, context=200)
    bench = tiered(runner, host=dice.choice([3000, 20_000]), anchors=dice.choice([1, 2, 8]), chunk_tokens=32)
    talks = [prompt_of(1000 + seed, 40) + prompt_of(talk, 20) for talk in range(4)]
    for _ in range(40):
        jobs = [agent_job(history, 40, 5) for history in dice.sample(talks, 2)]
        for job in jobs:
            bench.scheduler.submit(job)
        for _ in range(dice.randrange(8)):
            bench.step()
        jobs[0].cancelled = dice.random() < 0.2
        bench.drain()
        for job in jobs:
            assert reply(job) == cold_tokens(job.tokens[: job.prompt], len(reply(job)))
        place = dice.randrange(4)
        kept = jobs[1].tokens[: dice.randrange(41, len(jobs[1].tokens) + 1)]
        talks[place] = [*kept, *dice.choices(range(97), k=dice.randrange(1, 30))][:150]
        assert bench.prefix._store is not None
        bench.prefix._store._host.check_integrity()
    assert bench.prefix._store is not None
    assert bench.prefix._store.restored_tokens > 0


def test_a_second_start_finds_the_system_prefix_in_files(tmp_path: Path) -> None:
    system = prompt_of(0, 70)
    for start in range(2):
        bench = tiered(ToyRunner(), tmp_path / "toy")
        job = agent_job(system + prompt_of(1 + start, 30), 70)
        bench.scheduler.submit(job)
        bench.drain()
        assert job.cached == 70 * start
        assert reply(job) == cold_tokens(job.tokens[: job.prompt], 4)
        assert bench.prefix._store is not None
        bench.prefix._store.close()
    assert len(list((tmp_path / "toy").iterdir())) == 1


def segment(seed: int, length: int = 40) -> Segment:
    dice = random.Random(seed)
    key = token_key(prompt_of(seed, length))
    return Segment(key, 0, Bytes(dice.randbytes(300)), Bytes(dice.randbytes(20)))


def plain(found: Segment | None) -> tuple[bytes, int, bytes, bytes] | None:
    """A segment by its bytes, to be compared."""
    if found is None:
        return None
    return found.key, found.first, found.pages.view().tobytes(), found.state.view().tobytes()


@pytest.mark.parametrize("piece", [64, 4 << 20])
def test_every_damaged_byte_is_seen(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PIECE_BYTES", piece)
    data = b"".join(encode(segment(0)))
    file = tmp_path / "one"

    def read(written: bytes) -> Segment | None:
        file.write_bytes(written)
        return read_segment(file, ordinary)

    assert plain(read(data)) == plain(segment(0))
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 1 << (place % 8)
        assert read(bytes(wrong)) is None, place
    for length in range(0, len(data), 7):
        assert read(data[:length]) is None
    assert read(data + b"x") is None


def test_a_file_of_another_version_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole and sound, but of a format that this package does not read."""
    data = bytearray(b"".join(encode(segment(0))))
    data[8] = VERSION + 1
    lengths = len(segment(0).key) + 320
    end = len(data) - 32
    data[end:] = hashlib.sha256(data[:40] + data[40 + lengths : end]).digest()
    file = tmp_path / f"40-{'a' * 32}.prefix"
    file.write_bytes(data)
    tier = DiskTier(tmp_path, 1 << 20)
    assert set(tier.positions()) == {40}
    assert tier.get(Address(40, "a" * 32)) is None
    assert not file.exists()
    assert caplog.text.count("removed") == 1
    tier.close()


def test_no_memory_is_asked_for_what_a_damaged_header_claims(tmp_path: Path) -> None:
    data = bytearray(b"".join(encode(segment(0))))
    data[16 + 8 : 16 + 16] = (1 << 50).to_bytes(8, "little")
    (tmp_path / "one").write_bytes(data)

    def none(size: int, state: bool) -> Held:
        raise AssertionError(f"{size} bytes were asked for")

    assert read_segment(tmp_path / "one", none) is None


def test_a_damaged_file_is_removed_and_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompt_of(0, 100)
    for start in range(3):
        bench = tiered(ToyRunner(), tmp_path / "toy")
        job = agent_job(prompt, 70)
        bench.scheduler.submit(job)
        bench.drain()
        assert reply(job) == cold_tokens(prompt, 4)
        assert job.cached == (70 if start == 2 else 0)
        assert bench.prefix._store is not None
        bench.prefix._store.close()
        if start == 0:
            (file,) = (tmp_path / "toy").iterdir()
            data = bytearray(file.read_bytes())
            data[-50] ^= 1
            file.write_bytes(data)
    assert "damaged" in caplog.text


def test_a_digest_alone_never_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one digest for all, a segment of other ids is found and refused."""
    bench = tiered(ToyRunner(pages=40), anchors=2)
    store = bench.prefix._store
    assert store is not None
    monkeypatch.setattr(
        store, "_addresses", lambda key, positions: (Address(place, "0") for place in positions)
    )
    for seed in (0, 1, 0, 1):
        job = agent_job(prompt_of(seed, 100), 70)
        bench.scheduler.submit(job)
        bench.drain()
        assert reply(job) == cold_tokens(prompt_of(seed, 100), 4)


def test_the_files_of_all_models_together_stay_within_the_bound(tmp_path: Path) -> None:
    size = sum(map(len, encode(segment(0))))
    for seed in range(6):
        tier = DiskTier(tmp_path / str(seed % 2), 3 * size)
        tier.put(Address(40, f"{seed:032x}"), segment(seed))
        tier.close()
    left = sorted(path.name for path in tmp_path.glob("*/*"))
    assert len(left) == 3
    too_large = DiskTier(tmp_path / "0", size - 200)
    assert not too_large.takes(segment(9).nbytes)
    too_large.close()
    assert too_large.skipped == 1


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    """What one writes the other finds; what one removes the other does without."""
    one, two = DiskTier(tmp_path / "m", 1 << 20), DiskTier(tmp_path / "m", 1 << 20)
    address = Address(40, "a" * 32)
    assert two.first(address) is None
    one.put(address, segment(0))
    two.put(address, segment(0))
    one.close()
    two.close()
    assert set(two.positions()) == {40}
    assert plain(two.get(address)) == plain(segment(0))
    (file,) = (tmp_path / "m").iterdir()
    file.unlink()
    assert two.get(address) is None
    assert two.first(address) is None


def test_a_change_at_the_time_stamp_of_the_last_one_is_seen(tmp_path: Path) -> None:
    """File systems count time in ticks: a file may come behind a look without a trace in the time."""
    tier, address = DiskTier(tmp_path, 1 << 20), Address(40, "b" * 32)
    stamp = tmp_path.stat()
    assert not list(tier.positions())
    (tmp_path / f"40-{'b' * 32}.prefix").write_bytes(b"".join(encode(segment(0))))
    os.utime(tmp_path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert list(tier.positions()) == [40]
    assert plain(tier.get(address)) == plain(segment(0))
    tier.close()


def test_what_a_crash_left_is_removed_later(tmp_path: Path) -> None:
    old, young = tmp_path / ".writing-old", tmp_path / ".writing-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (0, 0))
    DiskTier(tmp_path, 100).close()
    assert not old.exists()
    assert young.exists()


def test_host_memory_is_bounded() -> None:
    tier = HostTier(3 * segment(0).nbytes)
    for seed in range(10):
        tier.put(Address(40, str(seed)), segment(seed))
        tier.get(Address(40, "0"))
        tier.check_integrity()
    assert len(tier) == 3
    assert plain(tier.get(Address(40, "0"))) == plain(segment(0))
    tier.put(Address(400, "x"), segment(0, 400))
    assert tier.get(Address(400, "x")) is None
    tier.check_integrity()

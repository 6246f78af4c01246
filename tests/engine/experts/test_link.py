"""Both copy streams: the loopback, and the CUDA one on a driver that lives in host memory."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ftagent.engine.experts.link import Copy, Link, LinkFailed, Write, cuda_link, loopback_link
from ftagent.engine.machine import native

COPIES, BATCHES, WRITES, WRITE_BATCHES, RETAINED = range(5)  # counts that the fake driver keeps


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    loaded = native.load()
    if loaded is None:
        pytest.skip("no C++ compiler")
    return loaded


@pytest.fixture(scope="module")
def driver_path(library: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("driver") / "libfakecuda.so"
    compiler = native.find_compiler()
    assert compiler is not None
    source = Path(__file__).with_name("fake_cuda.cpp")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(target)], check=True)
    return target


class Region:
    """Random rows on the host, and a poisoned device."""

    def __init__(self, rows: int, size: int) -> None:
        self.host = np.random.default_rng().integers(0, 256, (rows, size), dtype=np.uint8)
        self.device = np.full_like(self.host, 0xEE)
        self.words = np.zeros(300, dtype=np.int32)

    def copies(self) -> list[Copy]:
        size = self.host.shape[1]
        bases = self.device.ctypes.data, self.host.ctypes.data
        return [Copy(bases[0] + size * row, bases[1] + size * row, size) for row in range(len(self.host))]

    def word(self, place: int) -> int:
        return int(self.words.ctypes.data) + 4 * place


def move(link: Link, region: Region, words: int) -> None:
    """Everything over, then `words` words, then once more a single row; and compare."""
    mark = link.submit(region.copies(), [Write(region.word(i), i - 5) for i in range(words)])
    link.wait(mark, 10)
    assert np.array_equal(region.device, region.host)
    assert region.words[:words].tolist() == [i - 5 for i in range(words)]
    assert not region.words[words:].any()
    region.device[:] = 0
    link.wait(link.submit(region.copies()[-1:]), 10)
    assert np.array_equal(region.device[-1], region.host[-1])
    assert not region.device[:-1].any()
    assert link.error == ""


def test_loopback(library: ctypes.CDLL) -> None:
    link = loopback_link(library, bytes_per_s=1e8, max_delay_s=1e-4, seed=3)
    move(link, Region(9, 1001), 20)


def test_words_come_behind_their_copies(library: ctypes.CDLL) -> None:
    link = loopback_link(library, max_delay_s=2e-4)
    region = Region(1, 4000)
    for ticket in range(1, 200):
        region.host[:] = ticket % 251
        mark = link.submit(region.copies(), [Write(region.word(0), ticket)])
        deadline = time.monotonic() + 10
        while region.words[0] != ticket and time.monotonic() < deadline:
            os.sched_yield()
        assert np.array_equal(region.device, region.host)
        link.wait(mark, 10)


def test_loopback_takes_the_time_of_its_bandwidth(library: ctypes.CDLL) -> None:
    link = loopback_link(library, bytes_per_s=1e7)
    region = Region(1, 200_000)  # it must outlive the copy
    started = time.monotonic()
    link.wait(link.submit(region.copies()), 10)
    assert time.monotonic() - started >= 0.02


def test_loopback_faults(library: ctypes.CDLL) -> None:
    link = loopback_link(library, fail_at=2)
    region = Region(2, 100)
    link.wait(link.submit(region.copies()), 10)
    for _ in range(2):
        with pytest.raises(LinkFailed, match="refused"):
            link.submit(region.copies())
    stalled = loopback_link(library, stall_at=1)
    mark = stalled.submit(region.copies())
    with pytest.raises(LinkFailed, match=r"within 0\.05 s"):
        stalled.wait(mark, 0.05)


@pytest.mark.parametrize("without", ["", "cuMemcpyBatchAsync", "cuStreamBatchMemOp cuMemcpyBatchAsync"])
def test_cuda(library: ctypes.CDLL, driver_path: Path, monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    monkeypatch.setenv("FAKE_CUDA_WITHOUT", without)
    count = ctypes.CDLL(str(driver_path)).fake_cuda_count
    before = [count(which) for which in range(5)]
    link = cuda_link(library, 0, str(driver_path))
    move(link, Region(70, 333), 280)
    copies, batches, writes, write_batches, retained = (
        count(which) - old for which, old in enumerate(before)
    )
    assert (copies, batches) == ((71, 0) if "Memcpy" in without else (1, 2))
    # 280 words and a mark, then a mark, at most 129 in one call.
    assert (writes, write_batches) == ((282, 0) if "Stream" in without else (0, 4))
    assert retained == 1
    link.close()
    assert count(RETAINED) == before[RETAINED]


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("cuInit:100", "cuInit: unknown error"),
        ("cuStreamCreateWithPriority:700", "cuStreamCreateWithPriority: CUDA_ERROR_ILLEGAL_ADDRESS"),
    ],
)
def test_cuda_that_cannot_be_set_up_says_why(
    library: ctypes.CDLL, driver_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str, message: str
) -> None:
    count = ctypes.CDLL(str(driver_path)).fake_cuda_count
    before = count(RETAINED)
    monkeypatch.setenv("FAKE_CUDA_FAIL", fail)
    with pytest.raises(LinkFailed, match=message):
        cuda_link(library, 0, str(driver_path))
    assert count(RETAINED) == before


def test_a_missing_driver_or_device_is_named(library: ctypes.CDLL, driver_path: Path) -> None:
    with pytest.raises(LinkFailed, match=r"driver cannot be opened: libnothing\.so"):
        cuda_link(library, 0, "libnothing.so")
    with pytest.raises(LinkFailed, match="CUDA device 2: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        cuda_link(library, 2, str(driver_path))
    gc.collect()


@pytest.mark.parametrize(
    "call", ["cuMemcpyBatchAsync", "cuMemcpyHtoDAsync", "cuStreamBatchMemOp", "cuStreamQuery"]
)
def test_a_cuda_error_is_named_and_stays(
    library: ctypes.CDLL, driver_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    link = cuda_link(library, 1, str(driver_path))
    region = Region(2, 64)
    mark = link.submit(region.copies())
    monkeypatch.setenv("FAKE_CUDA_FAIL", f"{call}:700")
    named = f"{call}: CUDA_ERROR_ILLEGAL_ADDRESS .an illegal memory access was encountered."
    copies = region.copies()[: 1 if "HtoD" in call else 2]
    with pytest.raises(LinkFailed, match=named):
        link.wait(mark + 1, 1) if call == "cuStreamQuery" else link.submit(copies)
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    with pytest.raises(LinkFailed, match=named):
        link.submit(region.copies())


@pytest.mark.gpu
def test_cuda_on_a_device(library: ctypes.CDLL) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    host = torch.randint(0, 256, (9, 300_007), dtype=torch.uint8).pin_memory()
    device = torch.zeros(host.shape, dtype=torch.uint8, device="cuda")
    words = torch.zeros(300, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    rows = zip(device, host, strict=True)
    copies = [Copy(target.data_ptr(), source.data_ptr(), source.numel()) for target, source in rows]
    link = cuda_link(library, 0)
    mark = link.submit(copies, [Write(words.data_ptr() + 4 * i, i - 5) for i in range(280)])
    link.wait(mark, 10)
    assert torch.equal(device.cpu(), host)
    assert words[:280].tolist() == [i - 5 for i in range(280)]
    assert not words[280:].any()
    link.wait(link.submit(copies[:1]), 10)
    with pytest.raises(LinkFailed, match="cuMemcpyHtoDAsync: CUDA_ERROR"):
        link.submit([Copy(0, host.data_ptr(), 64)])

"""Registration of host memory: whole, once, taken back once, and before the memory goes."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

import pytest
import torch

from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, ExpertShape
from ftagent.engine.experts.host_memory import HUGE_BYTES, HostMemory
from ftagent.engine.experts.pinning import CudaRegistrar


class Ledger:
    """A registrar that keeps books. `quota` is what may be registered at a time."""

    def __init__(self, quota: int = 2**40) -> None:
        self.quota = quota
        self.held: dict[int, int] = {}

    def register(self, address: int, size: int) -> str | None:
        assert all(address + size <= start or start + held <= address for start, held in self.held.items())
        if sum(self.held.values()) + size > self.quota:
            return "out of memory"
        self.held[address] = size
        return None

    def unregister(self, address: int) -> None:
        del self.held[address]


def test_memory_begins_on_a_huge_page_and_can_be_written() -> None:
    for size in (1, 4096, HUGE_BYTES, 3 * HUGE_BYTES + 12345):
        memory = HostMemory(size)
        assert memory.address % HUGE_BYTES == 0
        assert memory.tensor.data_ptr() == memory.address
        assert memory.tensor.numel() == size
        assert not memory.tensor.any()
        memory.tensor.fill_(7)


def test_close_ends_the_registration_once() -> None:
    ledger, memory = Ledger(), HostMemory(10_000)
    assert not memory.registered
    assert memory.register(ledger) is None
    assert memory.register(ledger) is None, "asked for twice, registered once"
    assert ledger.held == {memory.address: 10_000}
    assert memory.registered
    memory.close()
    memory.close()
    assert not ledger.held
    assert not memory.registered


def test_a_dropped_object_ends_its_registration() -> None:
    ledger, memory = Ledger(), HostMemory(10_000)
    assert memory.register(ledger) is None
    del memory
    gc.collect()
    assert not ledger.held


def test_a_refusal_leaves_the_bank_usable() -> None:
    bank = ExpertBank(2, ExpertShape(64, 16), ExpertFormat(torch.float32))
    bank.records(1).fill_(3.0)
    ledger = Ledger(quota=bank.nbytes - 1)
    assert bank.pin(ledger) == "out of memory"
    assert not bank.pinned
    assert bool((bank.records(1) == 3.0).all())
    ledger.quota += 1
    assert bank.pin(ledger) is None
    assert bank.pinned
    bank.close()
    assert not ledger.held


def driver_knows(address: int) -> bool:
    """Whether the driver takes this for host memory of its own. It knows nothing of other host memory."""
    memory_type, host, answer = 2, 1, ctypes.c_uint(0)
    error = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(
        ctypes.byref(answer), memory_type, ctypes.c_uint64(address)
    )
    return error == 0 and answer.value == host


@pytest.mark.gpu
def test_cuda_registers_and_copies_at_once() -> None:
    bank = ExpertBank(4, ExpertShape(512, 256), ExpertFormat(torch.bfloat16))
    values = torch.randn(4, 256, 3, 512).bfloat16()
    for expert in range(4):
        bank.records(expert).copy_(values[expert])
    torch.zeros(1, device="cuda")  # the driver answers a thread that has a context
    assert not driver_knows(bank.records(2).data_ptr())
    assert bank.pin(CudaRegistrar(torch.device("cuda", torch.cuda.current_device()))) is None
    assert driver_knows(bank.records(2).data_ptr())
    assert torch.equal(bank.records(2).to("cuda", non_blocking=True).cpu(), values[2])
    bank.close()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc/self/smaps")
def test_memory_that_is_written_lies_on_huge_pages() -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("the system gives no huge pages")
    memory = HostMemory(8 * HUGE_BYTES)
    memory.tensor.fill_(1)
    huge, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(text, 16) for text in bounds.groups())
            inside = begin < memory.address + memory.size and end > memory.address
        elif inside and line.startswith("AnonHugePages:"):
            huge += int(line.split()[1]) * 1024
    # A fragmented system may not find all of them.
    assert huge >= HUGE_BYTES

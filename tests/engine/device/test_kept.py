"""Kept prompts of a device: memory that comes and goes, contents bit for bit, and replies that stay the same.

The replies are held against transformers; without a device the kernels are interpreted.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.context.keeping import Kept
from ftagent.engine.context.pages import PAGE_TOKENS, KvShape, KvStorage
from ftagent.engine.context.recurrent import StateShape
from ftagent.engine.context.tiers import Held
from ftagent.engine.context.windows import WindowShape
from ftagent.engine.device import kept
from ftagent.engine.device.contents import DeviceContents, DeviceStates
from ftagent.engine.device.kept import Block, KeptMemory
from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.experts.pinning import CudaRegistrar
from ftagent.errors import LoadFailed
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options

UNIT = 4096  # bytes; the least that a block takes
SMALL = {"num_hidden_layers": 2, "full_attention_interval": 2, "initializer_range": 0.1}
STATES = StateShape(3, 3, 10, 2, 4, 4)


def test_blocks_come_back_when_nobody_refers_to_them() -> None:
    memory = KeptMemory(10 * UNIT, 3 * UNIT)
    blocks = [memory.state() for _ in range(3)]
    assert memory.state() is None
    rest = memory.block(UNIT)
    assert rest is not None
    assert memory.used == 10 * UNIT
    assert memory.block(1) is None
    blocks[1] = None
    del rest
    gc.collect()
    assert memory.used == 6 * UNIT
    assert memory.state() is not None
    memory.check_integrity()
    memory.close()
    memory.close()


def test_what_is_kept_gives_way_until_there_is_room() -> None:
    memory = KeptMemory(8 * UNIT, 2 * UNIT)
    held = [memory.block(2 * UNIT) for _ in range(4)]

    def let_go() -> bool:
        if not held:
            return False
        held.pop(0)
        return True

    memory.on_shortage(let_go)
    state = memory.state()
    assert state is not None
    assert len(held) == 3
    block = memory.block(3 * UNIT)
    assert block is not None
    assert len(held) == 1, "no more than is needed"
    assert memory.block(7 * UNIT) is None
    assert not held
    memory.check_integrity()


def test_memory_that_the_driver_refuses_is_used_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing:
        def register(self, address: int, size: int) -> str | None:
            return "out of memory"

        def unregister(self, address: int) -> None:
            raise AssertionError("nothing was registered")

    memory = KeptMemory(4 * UNIT, UNIT, Refusing())
    memory.ready()
    block = memory.block(10)
    assert block is not None
    block.view()[:] = bytes(range(10))
    assert caplog.text.count("does not register 16384 bytes (out of memory)") == 1
    memory.close()


class Ledger:
    """A registrar that keeps books: registered ranges, which may neither overlap nor be copied across."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def register(self, address: int, size: int) -> str | None:
        assert all(address + size <= start or start + held <= address for start, held in self.held.items())
        self.held[address] = size
        return None

    def unregister(self, address: int) -> None:
        del self.held[address]


def test_memory_is_registered_as_it_comes_into_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends at once, the rest near blocks; no piece of a copy crosses an edge, and no state has one."""
    monkeypatch.setattr(kept, "SLAB_BYTES", 8 * UNIT)
    ledger = Ledger()
    memory = KeptMemory(100 * UNIT, 3 * UNIT, ledger)
    memory.ready()
    assert sum(ledger.held.values()) == 6 * UNIT + 4 * UNIT, "six from the end, and what is over at the begin"
    first = memory.block(UNIT)
    assert first is not None
    first.view()[:] = bytes([7]) * UNIT
    memory.ready()
    assert sum(ledger.held.values()) == 16 * UNIT
    assert bytes(first.view()) == bytes([7]) * UNIT, "registering changes nothing"
    large = memory.block(20 * UNIT)
    assert large is not None
    memory.ready()
    starts = sorted(ledger.held)
    edges = {start - starts[0] for start in starts}
    for begin, size in [(0, 20 * UNIT), (UNIT + 1, 11 * UNIT), (5, 10)]:
        ends = [begin + at + length for at, length in large.pieces(begin, size)]
        places = [begin + at for at, _ in large.pieces(begin, size)]
        assert places == [begin, *ends[:-1]]
        assert ends[-1] == begin + size
        assert all((UNIT + place) in edges for place in places[1:])
    for _ in range(10):
        state = memory.state()
        assert state is not None
        assert list(state.pieces(0, 3 * UNIT)) == [(0, 3 * UNIT)]
    memory.close()
    assert not ledger.held


def test_memory_that_cannot_be_mapped_is_said_by_name(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(kept, "HostMemory", refuse)
    with pytest.raises(
        LoadFailed, match=r"kept prompts \(Cannot allocate memory\); keep fewer \(--anchors\)"
    ):
        Pools(device, torch.float32, Kept(2, 1 << 20), WindowShape())


class Pools:
    """Pages and states of random values on a device, with few bytes of staging."""

    def __init__(self, device: torch.device, dtype: torch.dtype, kept: Kept, window: WindowShape) -> None:
        shape = KvShape(3, 4, 8)
        self.storage = KvStorage(shape, 12, dtype, device)
        for layer in range(3):
            self.storage.layer(layer).copy_(torch.randn(self.storage.layer(layer).shape))
        self.states = DeviceStates(3, STATES, device, window, dtype)
        copies = max(3 * shape.page_bytes(dtype), self.states.slot_bytes)
        registrar = CudaRegistrar(device) if device.type == "cuda" else None
        self.contents = DeviceContents(self.storage, self.states, kept, copies, registrar)
        self.contents.ready()

    def page(self, layer: int, page: int) -> torch.Tensor:
        return self.storage.layer(layer)[:, page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS]

    def fill(self, slot: int) -> list[torch.Tensor]:
        """Random values in a slot, as they are then."""
        parts = [self.states.conv, self.states.recurrent, self.states.windows.stored]
        for part in parts:
            part[:, slot] = torch.randn(part[:, slot].shape).to(part)
        return [part[:, slot].clone() for part in parts]

    def is_in(self, slot: int, values: list[torch.Tensor]) -> bool:
        parts = [self.states.conv, self.states.recurrent, self.states.windows.stored]
        return all(torch.equal(part[:, slot], value) for part, value in zip(parts, values, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [WindowShape(), WindowShape(2, 4, 8, 5)])
def test_pages_and_states_come_back_bit_for_bit(
    dtype: torch.dtype, window: WindowShape, device: torch.device
) -> None:
    pools = Pools(device, dtype, Kept(2, 1 << 20), window)
    contents, states = pools.contents, pools.states
    source, target = [6, 7, 2, 0, 11], [1, 3, 4, 8, 5]
    held = contents.read_pages(source, spare=False)
    assert held is not None
    assert len(held) == 5 * contents.page_bytes
    for layer in range(3):
        for page in source:
            pools.page(layer, page).neg_()  # the copy is of what was there before
    contents.write_pages(target[1:], held, 1)
    for layer in range(3):
        for old, new in zip(source[1:], target[1:], strict=True):
            assert torch.equal(pools.page(layer, new), -pools.page(layer, old))
    slots = [states.allocate() for _ in range(3)]
    first = pools.fill(slots[0])
    kept = states.snapshot(slots[0])
    assert kept is not None
    second = pools.fill(slots[0])
    again = states.snapshot(slots[0])
    assert again is not None
    states.restore(slots[1], contents.unpack(contents.pack(kept)))  # type: ignore[arg-type]
    states.restore(slots[2], again)
    assert pools.is_in(slots[1], first)
    assert pools.is_in(slots[2], second)
    written = kept.view().tobytes()
    pools.fill(slots[1])
    assert kept.view().tobytes() == written, "a snapshot is nobody's slot"
    contents.close()


def test_pages_lie_in_memory_as_those_of_the_cpu_do(device: torch.device) -> None:
    """One layout of a page: layer by layer, [planes, PAGE_TOKENS, size]."""
    pools = Pools(device, torch.float32, Kept(1, 1 << 20), WindowShape())
    held = pools.contents.read_pages([9, 4], spare=False)
    assert held is not None
    found = torch.frombuffer(bytearray(held.view()), dtype=torch.float32).view(2, 3, 4, PAGE_TOKENS, 8)
    for place, page in enumerate((9, 4)):
        for layer in range(3):
            assert torch.equal(found[place, layer], pools.page(layer, page).cpu())


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_overtaken_where_copies_follow_each_other(seed: int, device: torch.device) -> None:
    """Slots and pages are overwritten right behind the copy out of them, blocks dropped while on their way,
    and their memory used again: what comes back is what was there when it was kept.
    """
    dice = random.Random(seed)
    pools = Pools(device, torch.float32, Kept(4, 200_000), WindowShape())
    slots = [pools.states.allocate() for _ in range(3)]
    states: list[tuple[Block, list[torch.Tensor]]] = []
    pages: list[tuple[Held, float]] = []
    for step in range(120):
        match dice.randrange(4):
            case 0:
                slot = dice.choice(slots)
                values = pools.fill(slot)
                block = pools.states.snapshot(slot)
                pools.states.recurrent[:, slot].zero_()
                states += [] if block is None else [(block, values)]
            case 1 if states:
                block, values = states.pop(dice.randrange(len(states)))
                slot = dice.choice(slots)
                pools.states.restore(slot, block)
                del block
                assert pools.is_in(slot, values)
            case 2:
                source = dice.sample(range(12), 4)
                for layer in range(3):
                    for page in source:
                        pools.page(layer, page).fill_(step)
                held = pools.contents.read_pages(source, spare=False)
                for layer in range(3):
                    pools.page(layer, source[0]).fill_(-1)
                pages += [] if held is None else [(held, step)]
            case _ if pages:
                held, value = pages.pop(dice.randrange(len(pages)))
                target = dice.sample(range(12), 3)
                pools.contents.write_pages(target, held, 1)
                del held
                assert all(bool((pools.page(2, page) == value).all()) for page in target)
    pools.contents.check_integrity()
    pools.contents.close()


def test_what_must_be_written_finds_other_memory_where_none_is_left(device: torch.device) -> None:
    pools = Pools(device, torch.float32, Kept(0, 0), WindowShape())
    assert pools.contents.read_pages([1, 2], spare=False) is None
    held = pools.contents.read_pages([1, 2], spare=True)
    assert isinstance(held, Block)
    assert held.loose
    pools.contents.write_pages([5, 6], held, 0)
    for layer in range(3):
        assert torch.equal(pools.page(layer, 6), pools.page(layer, 2))
    assert pools.contents.unpack(pools.contents.blank(pools.states.slot_bytes, True)) is None


def test_states_kept_on_the_way_are_those_of_chunks_that_end_there(
    tmp_path: Path, device: torch.device
) -> None:
    """And they take one pass over the experts."""
    oracle = Oracle("qwen3_5_moe", tmp_path, 12, SMALL)
    runner = load_on(device, tmp_path, twin_options("fused", context=128, max_running=2), torch.float32)
    try:
        tokens, marks = oracle.tokens(100), [20, 37, 64, 81]
        passes = count_passes(runner)
        slots = [runner.recurrent.allocate() for _ in range(2)]
        pages = [runner.kv.allocate(2) for _ in range(2)]
        logits = runner.step([Chunk(tokens, 0, pages[0], slots[0], True, marks)])
        assert passes == [100]
        whole = [runner.recurrent.take(slots[0], mark) for mark in marks]
        cut: list[Block | None] = []
        for begin, end in zip([0, *marks], [*marks, 100], strict=True):
            last = runner.step([Chunk(tokens[begin:end], begin, pages[1], slots[1], end == 100)])
            cut.append(runner.recurrent.snapshot(slots[1]))
        for one, other in zip(whole, cut, strict=False):
            assert one is not None
            assert other is not None
            torch.testing.assert_close(state_of(one), state_of(other), rtol=0, atol=1e-5)
        torch.testing.assert_close(logits, last, rtol=0, atol=1e-4)
        torch.testing.assert_close(logits[0].cpu(), oracle.logits(tokens)[-1], rtol=0, atol=2e-4)
        assert runner.recurrent.take(slots[0], marks[0]) is None
    finally:
        runner.close()


def state_of(block: Block) -> torch.Tensor:
    return torch.frombuffer(bytearray(block.view()), dtype=torch.float32)


def count_passes(runner: DeviceRunner) -> list[int]:
    """The tokens of each pass over the experts from now on."""
    passes: list[int] = []
    assert runner.experts is not None
    begin = runner.experts.prefill.begin

    def counted(tokens: int, device_ns: int) -> None:
        passes.append(tokens)
        begin(tokens, device_ns)

    runner.experts.prefill.begin = counted  # type: ignore[method-assign]
    return passes

"""Decode kernels that meet the host: a thread answers them as the protocol says, or fails to."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import pytest
import torch

from ftagent.engine.experts.mailbox import MAX_UPDATES, MailboxLayout, Offsets
from ftagent.engine.kernels.gpu import expert_plan, experts_reference
from ftagent.engine.kernels.gpu.expert_plan import ExpertPlan, HostArrays
from tests.engine.kernels.gpu.expert_cases import Layer, Sizes, assert_near

DEADLINE_S = 60.0
SIZES = Sizes(hidden=40, intermediate=24, experts=8, per_token=3, batch=2, shared=16)
PLAN = ExpertPlan(SIZES.hidden, SIZES.intermediate, run=8, block=4, warps=4, stages=2)
RESIDENT = frozenset({0, 2, 3, 5})
GUESSES = 3
MOST = 3  # rows of the largest step: one more than this one's


class Mailbox:
    """The region on the host, as tensors by name."""

    def __init__(self, sizes: Sizes, layers: int, pin: bool, patience_ns: int) -> None:
        itemsize = sizes.dtype.itemsize
        self.layout = MailboxLayout(
            layers, sizes.experts, MOST, sizes.per_token, GUESSES, sizes.hidden, itemsize
        )
        region = torch.zeros(self.layout.nbytes + 64, dtype=torch.uint8, pin_memory=pin)
        begin = -region.data_ptr() % 64
        self._region = region[begin : begin + self.layout.nbytes]
        self.arrays = HostArrays.at(self._region.data_ptr(), self.layout.offsets, patience_ns)
        self._sizes = sizes

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype = {"x": self._sizes.dtype, "y": torch.float32}.get(name, torch.int32)
        shape, start = self.layout.shapes[name], getattr(self.layout.offsets, name)
        size = dtype.itemsize * torch.Size(shape).numel()
        return self._region[start : start + size].view(dtype).view(shape)


@dataclass
class Scene:
    """A layer, the mailbox, and what the host's thread needs of them without asking the busy device.

    On a device that thread works on a stream of its own and only copies: a kernel or an allocation could wait
    for the kernel that waits for it.
    """

    layer: Layer
    mailbox: Mailbox
    guess: torch.Tensor
    ids: list[int]
    misses: list[int]  # pairs of live rows without a slot
    bank: torch.Tensor  # float64 on the CPU
    epoch: int

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the kernel never came"
            time.sleep(0)

    def wait_for_post(self) -> None:
        self.wait(lambda: int(self.mailbox["post"][self.layer.layer, 0]) == self.epoch)

    def plan(self, pair: int, slot: int, cut: int, ticket: int = 0) -> None:
        for name, value in (("slot", slot), ("cut", cut), ("ticket", ticket)):
            self.mailbox[name][self.layer.layer, pair] = value

    def compute(self, pair: int, cut: int) -> None:
        """The host's part of a pair."""
        layer = self.layer
        row, rank = divmod(pair, layer.sizes.per_token)
        assert rank < layer.sizes.per_token
        x = self.mailbox["x"][row].double()
        records = self.bank[self.ids[pair], cut:]
        self.mailbox["y"][pair] = experts_reference.expert(x, records).float()

    def slot(self, pair: int) -> int:
        """Where the expert of a pair that missed will be."""
        return self.layer.slot_order[self.ids[pair]]

    def fetch(self, pair: int, cut: int, ticket: int) -> None:
        """The records [0, cut) of a pair's expert into its slot, then the ticket."""
        layer, expert, slot = self.layer, self.ids[pair], self.slot(pair)
        layer.slots[slot, :cut].copy_(layer.bank[expert, :cut])
        layer.tables.landed[slot : slot + 1].copy_(torch.tensor([ticket], dtype=torch.int32))

    def answer(self, flag: str, value: int | None = None) -> None:
        self.mailbox[flag][self.layer.layer, 0] = self.epoch if value is None else value

    @contextmanager
    def host(self, work: Callable[[], None]) -> Iterator[None]:
        """`work` on a thread while the kernels run; its failure fails the test."""
        failures: list[BaseException] = []
        own = torch.cuda.stream(side_stream()) if self.layer.device.type == "cuda" else nullcontext()

        def guarded() -> None:
            try:
                with own:
                    work()
            except BaseException as error:  # noqa: BLE001 raised again on the test's own thread
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        yield
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """The host thread's. Of another priority than the kernels' stream: two streams of one priority can share
    one of the device's queues, and then a copy waits for the kernel that waits for it.
    """
    return torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]


def load_kernels(layer: Layer, mailbox: Mailbox, guess: torch.Tensor) -> None:
    """Run once with hits only, and copy as the host's thread will: loading code may wait for the kernel that
    waits for the host.
    """
    chosen = layer.ids.clone()
    layer.ids.copy_(torch.tensor([[0, 2, 3], [5, 0, 2]]))
    layer.run(mailbox.arrays, guess)
    layer.run(mailbox.arrays)
    landed, records = layer.tables.landed, torch.empty_like(layer.bank[0])
    with torch.cuda.stream(side_stream()):
        records[:8].copy_(layer.bank[0, :8])
        landed[:1].copy_(torch.tensor([0], dtype=torch.int32))
    layer.ids.copy_(chosen)
    layer.partial.fill_(float("nan"))
    torch.cuda.synchronize()
    mailbox["post"].zero_()


def scene(
    device: torch.device, sizes: Sizes = SIZES, patience_ns: int = 20 * 10**9, live: int = SIZES.batch
) -> Scene:
    layer = Layer(sizes, PLAN, device, resident=RESIDENT, layers=3, layer=2, spare=2, seed=1, most=MOST)
    layer.rows.fill_(live)
    mailbox = Mailbox(sizes, 3, device.type == "cuda", patience_ns)
    generator = torch.Generator().manual_seed(2)
    guess = torch.randint(0, sizes.experts, (sizes.batch, GUESSES), generator=generator, dtype=torch.int32)
    guess = guess.to(device)
    if device.type == "cuda":
        load_kernels(layer, mailbox, guess)
    for name in ("ids", "seen", "guess", "x", "y", "slot", "cut", "ticket", "update_index", "update_value"):
        mailbox[name].fill_(-12345)
    mailbox["y"].fill_(float("nan"))
    layer.tables.plan_slot.fill_(10**6)  # a plan of a step before: whoever reads it faults
    seen = layer.seen.flatten().tolist()[: live * sizes.per_token]
    misses = [pair for pair, slot in enumerate(seen) if slot < 0]
    assert 0 < len(misses) < len(seen)
    bank, ids = layer.bank.cpu().double(), layer.ids.flatten().tolist()
    return Scene(layer, mailbox, guess, ids, misses, bank, int(layer.epoch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [0, 6, 8, 21, 24])
def test_misses_are_split_between_device_and_host(device: torch.device, dtype: torch.dtype, cut: int) -> None:
    """The plan comes late, the records later, the host's part last; nothing is read before its flag."""
    here = scene(device, replace(SIZES, dtype=dtype))
    layer, mailbox = here.layer, here.mailbox
    expected = layer.expected()

    def host() -> None:
        here.wait_for_post()
        for ticket, pair in enumerate(here.misses, start=5):
            here.plan(pair, here.slot(pair) if cut else -1, cut, ticket)
        mailbox["updates"][2] = 0
        here.answer("planned")
        for ticket, pair in enumerate(here.misses, start=5):
            if cut:
                here.fetch(pair, cut, ticket)
        for pair in here.misses:
            if cut < layer.sizes.intermediate:
                here.compute(pair, cut)
        here.answer("done")

    with here.host(host):
        found = layer.run(mailbox.arrays, here.guess)
    assert int(layer.tables.fail) == 0
    assert_near(found, expected)


def test_everything_posted_is_what_the_device_saw(device: torch.device) -> None:
    here = scene(device, live=1)
    layer, mailbox = here.layer, here.mailbox

    def host() -> None:
        here.wait_for_post()
        for pair in here.misses:
            here.plan(pair, -1, 0)
            here.compute(pair, 0)
        here.answer("planned")
        here.answer("done")

    with here.host(host):
        assert_near(layer.run(mailbox.arrays, here.guess), layer.expected())
    per_token = layer.sizes.per_token
    assert mailbox["ids"][2].tolist() == [*layer.ids[0].tolist(), *[-1] * per_token * 2]
    assert mailbox["seen"][2].tolist() == [*layer.seen[0].tolist(), *[-1] * per_token * 2]
    assert mailbox["guess"][2].tolist() == [here.guess[0].tolist(), *[[-1] * GUESSES] * 2]
    assert torch.equal(mailbox["x"][0], layer.normed[0].cpu())
    for name in ("ids", "seen", "guess"):
        assert bool((mailbox[name][:2] == -12345).all()), f"{name} of another layer was written"
    assert mailbox["post"][:, 0].tolist() == [0, 0, here.epoch]


def test_hits_wait_for_nobody(device: torch.device) -> None:
    here = scene(device, patience_ns=10**6)
    layer = here.layer
    layer.ids.copy_(torch.tensor([[0, 2, 3], [5, 0, 2]]))
    assert_near(layer.run(here.mailbox.arrays), layer.expected())
    assert int(layer.tables.fail) == 0
    assert int(here.mailbox["post"][2, 0]) == here.epoch


def test_plan_changes_the_slot_table(device: torch.device) -> None:
    here = scene(device)
    layer, mailbox = here.layer, here.mailbox
    before = layer.tables.slot_of.clone()
    changes = {0 * 8 + 4: 9, 2 * 8 + 1: 3, 1 * 8 + 7: -1}

    def host() -> None:
        here.wait_for_post()
        for pair in here.misses:
            here.plan(pair, -1, 0)
            here.compute(pair, 0)
        mailbox["updates"][2] = len(changes)
        mailbox["update_index"][2, : len(changes)] = torch.tensor(list(changes), dtype=torch.int32)
        mailbox["update_value"][2, : len(changes)] = torch.tensor(list(changes.values()), dtype=torch.int32)
        here.answer("planned")
        here.answer("done")

    with here.host(host):
        layer.run(mailbox.arrays)
    expected = before.flatten().tolist()
    for index, value in changes.items():
        expected[index] = value
    assert layer.tables.slot_of.flatten().tolist() == expected


def test_tickets_wrap_around(device: torch.device) -> None:
    here = scene(device)
    layer, mailbox, whole = here.layer, here.mailbox, here.layer.sizes.intermediate
    expected = layer.expected()

    def host() -> None:
        here.wait_for_post()
        for pair in here.misses:
            here.fetch(pair, whole, ticket=-(2**31))  # one past the largest
            here.plan(pair, here.slot(pair), whole, ticket=2**31 - 1)
        here.answer("planned")

    with here.host(host):
        assert_near(layer.run(mailbox.arrays), expected)
    assert int(layer.tables.fail) == 0


def test_host_that_gives_up_fails_the_step_at_once(device: torch.device) -> None:
    here = scene(device)
    layer = here.layer

    def host() -> None:
        here.wait_for_post()
        here.answer("planned", -here.epoch)

    with here.host(host):
        assert torch.isfinite(layer.run(here.mailbox.arrays)).all()
    assert int(layer.tables.fail) == 1


def test_host_part_that_fails_fails_the_step(device: torch.device) -> None:
    here = scene(device)

    def host() -> None:
        here.wait_for_post()
        for pair in here.misses:
            here.plan(pair, -1, 0)
        here.answer("planned")
        here.answer("done", -here.epoch)

    with here.host(host):
        assert torch.isfinite(here.layer.run(here.mailbox.arrays)).all(), "a y that never came was added"
    assert int(here.layer.tables.fail) == 1


@pytest.mark.parametrize("silent", ["planned", "done", "landed"])
def test_every_wait_ends(device: torch.device, silent: str) -> None:
    here = scene(device, patience_ns=2 * 10**6)
    whole = here.layer.sizes.intermediate
    for pair in here.misses:
        here.plan(pair, -1, 0)
        if silent == "landed":
            here.plan(pair, here.layer.slot_order[0], whole, ticket=9)
    here.mailbox["y"].fill_(0)
    if silent != "planned":
        here.answer("planned")
    here.layer.run(here.mailbox.arrays)
    assert int(here.layer.tables.fail) == 1


def test_failed_step_waits_no_more(device: torch.device) -> None:
    """With patience for a minute: only a step that has failed already comes back in time."""
    here = scene(device, patience_ns=60 * 10**9)
    here.layer.tables.fail.fill_(1)
    began = time.monotonic()
    here.layer.run(here.mailbox.arrays)
    assert time.monotonic() - began < DEADLINE_S / 3


def test_arrays_are_those_of_the_layout() -> None:
    assert HostArrays._fields[:-1] == Offsets._fields
    assert expert_plan.MAX_UPDATES == MAX_UPDATES
    with pytest.raises(ValueError, match="host arrays: "):
        HostArrays.at(0, (1, 2))

"""Expert records on native threads and by torch against numpy in float64; bounds, determinism, hanging."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ftagent.engine.experts.native_executor import (
    NativeExecutor,
    RecordExecutor,
    RecordShape,
    TorchExecutor,
    record_executor,
)
from ftagent.engine.machine import native
from ftagent.engine.machine.record_threads import ISAS, ExecutorFailed, RecordPart, cpu_isas
from ftagent.errors import EngineError

SHAPES = [(200, 24), (64, 112), (2048, 24), (97, 768), (8, 1), (33, 7)]
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def library() -> None:
    if native.load() is None:
        pytest.skip("no native library")


class Bank(NamedTuple):
    """Experts in rows with a gap behind each; every byte outside of the records is a NaN."""

    shape: RecordShape
    memory: torch.Tensor  # [experts, row elements] of the dtype
    records: torch.Tensor  # [experts, intermediate, 3, hidden] of the dtype

    def part(self, expert: int, first: int, last: int, row: int) -> RecordPart:
        return RecordPart(self.memory[expert].data_ptr(), first, last, row)


def make_bank(hidden: int, intermediate: int, dtype: torch.dtype, experts: int = 4) -> Bank:
    count, gap = 3 * hidden * intermediate, 40
    memory = torch.full((experts, count + gap), torch.nan, dtype=dtype)
    records = torch.randn(experts, intermediate, 3, hidden) * hidden**-0.5
    memory[:, :count] = records.flatten(1).to(dtype)
    shape = RecordShape(hidden, intermediate, dtype, (count + gap) * dtype.itemsize)
    return Bank(shape, memory, memory[:, :count].view(experts, intermediate, 3, hidden))


class Expected(NamedTuple):
    """float64 [parts, hidden], and how far float32 sums may be from it: 5e-7 of what was added up."""

    y: npt.NDArray[np.float64]
    bound: npt.NDArray[np.float64]


def expected(bank: Bank, parts: Sequence[RecordPart], x: torch.Tensor) -> Expected:
    out, bound = np.zeros((2, len(parts), bank.shape.hidden))
    for i, part in enumerate(parts):
        expert = (part.address - bank.memory.data_ptr()) // bank.shape.row_bytes
        gate, up, down = bank.records[expert, part.first : part.last].double().numpy().transpose(1, 0, 2)
        vector = x[part.row].double().numpy()
        g, u = gate @ vector, up @ vector
        silu = g / (1 + np.exp(-g))
        out[i] = (silu * u) @ down
        g_added, u_added = np.abs(gate) @ np.abs(vector), np.abs(up) @ np.abs(vector)
        bound[i] = 5e-7 * ((g_added * np.abs(u) + np.abs(silu) * (u_added + np.abs(u))) @ np.abs(down))
    return Expected(out, bound)


def computed(executor: RecordExecutor, parts: Sequence[RecordPart], x: torch.Tensor) -> torch.Tensor:
    y = torch.full((len(parts), executor.shape.hidden), torch.nan)
    executor.run(parts, x, y, timeout_s=60.0)
    return y


def check(executor: RecordExecutor, bank: Bank, parts: Sequence[RecordPart], x: torch.Tensor) -> None:
    assert_near(computed(executor, parts, x), expected(bank, parts, x))


def assert_near(y: torch.Tensor, reference: Expected) -> None:
    off = np.abs(y.double().numpy() - reference.y)
    # A NaN is near nothing.
    assert bool((off <= reference.bound).all()), f"off by {np.nanmax(off / (reference.bound + 1e-30))} bounds"


def random_parts(bank: Bank, rows: int, rng: np.random.Generator) -> list[RecordPart]:
    """Experts whole, cut and empty; the rows of one beside each other, as the contract says, or alone."""
    parts = []
    for expert in range(len(bank.memory)):
        first, last = sorted(int(i) for i in rng.integers(0, bank.shape.intermediate + 1, 2))
        if expert == 1:
            first, last = 0, bank.shape.intermediate
        chosen = rng.permutation(rows)[: rng.integers(1, rows + 1)]
        parts += [bank.part(expert, first, last, int(row)) for row in chosen]
    return parts


@pytest.fixture
def executor_of(library: None) -> Iterator[Callable[..., NativeExecutor]]:
    made: list[NativeExecutor] = []

    def make(shape: RecordShape, threads: int = 2, isa: str | None = None) -> NativeExecutor:
        made.append(NativeExecutor(shape, threads, isa))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("isa", ISAS)
def test_against_numpy(
    isa: str, dtype: torch.dtype, threads: int, executor_of: Callable[..., NativeExecutor]
) -> None:
    if isa not in cpu_isas():
        pytest.skip(f"this processor has no {isa}")
    rng = np.random.default_rng()
    for hidden, intermediate in SHAPES:
        bank = make_bank(hidden, intermediate, dtype)
        executor = executor_of(bank.shape, threads, isa)
        assert executor.threads == threads
        assert executor.isa in (isa, "avx512" if dtype == torch.float32 else isa)
        for rows in (1, 2, 3, 4, 7):
            x = torch.randn(rows, hidden).to(dtype)
            check(executor, bank, random_parts(bank, rows, rng), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_torch_without_a_compiler(dtype: torch.dtype) -> None:
    rng = np.random.default_rng()
    for hidden, intermediate in SHAPES:
        bank = make_bank(hidden, intermediate, dtype)
        x = torch.randn(5, hidden).to(dtype)
        check(TorchExecutor(bank.shape), bank, random_parts(bank, 5, rng), x)


def test_single_records_and_more_threads_than_records(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(48, 9, torch.bfloat16)
    x = torch.randn(6, 48).bfloat16()
    for threads in (1, 3, 7):
        executor = executor_of(bank.shape, threads)
        for record in range(9):
            check(executor, bank, [bank.part(2, record, record + 1, 4)], x)
        check(executor, bank, [bank.part(3, 2, 5, row) for row in range(6)], x)
        check(executor, bank, [bank.part(0, 4, 4, 0), bank.part(1, 0, 1, 5), bank.part(1, 9, 9, 2)], x)
        check(executor, bank, [bank.part(0, 3, 3, 0)], x)
        check(executor, bank, [], x)


def test_a_part_is_the_same_bits_in_any_company_on_one_thread(
    executor_of: Callable[..., NativeExecutor],
) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        bank = make_bank(200, 24, dtype)
        x = torch.randn(7, 200).to(dtype)
        executor = executor_of(bank.shape, 1)
        alone = [computed(executor, [bank.part(1, 3, 20, row)], x)[0] for row in range(7)]
        for rows in (2, 3, 4, 7):
            together = computed(executor, [bank.part(1, 3, 20, row) for row in range(rows)], x)
            assert torch.equal(together, torch.stack(alone[:rows]))


def test_the_same_job_gives_the_same_bits(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(200, 112, torch.bfloat16)
    x = torch.randn(7, 200).bfloat16()
    parts = random_parts(bank, 7, np.random.default_rng())
    first = computed(executor_of(bank.shape, 3), parts, x)
    again = executor_of(bank.shape, 3)
    for _ in range(30):
        assert torch.equal(computed(again, parts, x), first)


def test_extreme_values_end_as_the_formula_says(executor_of: Callable[..., NativeExecutor]) -> None:
    for isa in cpu_isas():
        bank = make_bank(32, 3, torch.float32, experts=1)
        bank.records[0, :, 0] = torch.tensor([-200.0, 200.0, torch.nan])[:, None]
        x = torch.ones(1, 32)
        executor = executor_of(bank.shape, 2, isa)
        # silu of -6400 is 0 and of 6400 is 6400; exp must not make NaN out of infinity.
        check(executor, bank, [bank.part(0, 1, 2, 0)], x)
        assert torch.equal(computed(executor, [bank.part(0, 0, 1, 0)], x).abs(), torch.zeros(1, 32))
        # What is broken in the weights shows.
        assert bool(computed(executor, [bank.part(0, 0, 3, 0)], x).isnan().all())


def test_records_need_no_alignment(executor_of: Callable[..., NativeExecutor]) -> None:
    memory = torch.full((1 + 3 * 40 * 5 + 64,), torch.nan, dtype=torch.bfloat16)
    memory[1 : 1 + 600] = (torch.randn(600) * 0.2).bfloat16()
    shape = RecordShape(40, 5, torch.bfloat16, 1200)
    bank = Bank(shape, memory[None, 1:], memory[None, 1:601].view(1, 5, 3, 40))
    x = torch.randn(3, 40).bfloat16()
    for isa in cpu_isas():
        check(executor_of(shape, 2, isa), bank, [bank.part(0, 1, 4, row) for row in range(3)], x)


def test_the_last_worker_stores_the_value(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(64, 112, torch.bfloat16)
    x = torch.randn(2, 64).bfloat16()
    y = torch.full((2, 64), torch.nan)
    done = torch.zeros(16, dtype=torch.int32)
    team = executor_of(bank.shape, 3)._team
    parts = [bank.part(2, 0, 112, row) for row in range(2)]
    targets = [y[row].data_ptr() for row in range(2)]
    for epoch in range(1, 50):
        y.fill_(torch.nan)
        team.start(parts, targets, x.data_ptr(), 2, (done.data_ptr(), epoch))
        until(lambda epoch=epoch: int(done[0]) == epoch)  # type: ignore[misc]
        assert not y.isnan().any(), "the word came before the results"
        team.wait(DEADLINE_S)
    assert_near(y, expected(bank, parts, x))
    # A job with nothing to compute is done at once.
    team.start([bank.part(0, 5, 5, 0)], targets[:1], x.data_ptr(), 2, (done.data_ptr(), 77))
    assert int(done[0]) == 77
    team.wait(0.0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"


def workers() -> list[str]:
    """The states of this process's expert threads: R running, S asleep."""
    states = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:  # ended while we looked
            continue
        if name == "ft-expert":
            states.append(rest.split()[0])
    return states


def test_workers_sleep_when_idle_and_end_with_close(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(64, 9, torch.bfloat16)
    x = torch.randn(1, 64).bfloat16()
    assert workers() == []
    executor = executor_of(bank.shape, 3)
    until(lambda: workers() == ["S"] * 3)
    for _ in range(3):
        check(executor, bank, [bank.part(0, 0, 9, 0)], x)
        until(lambda: workers() == ["S"] * 3)
        executor._team.wake()
    executor.close()
    executor.close()
    assert workers() == []
    with pytest.raises(ExecutorFailed, match="closed"):
        computed(executor, [bank.part(0, 0, 9, 0)], x)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_that_hangs_is_named_and_let_go(
    threads: int, executor_of: Callable[..., NativeExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    bank = make_bank(64, 9, torch.bfloat16)
    x = torch.randn(1, 64).bfloat16()
    parts = [bank.part(0, 0, 9, 0)]
    executor = executor_of(bank.shape, threads)
    check(executor, bank, parts, x)
    executor.stall_for_test(0.5)
    y = torch.full((1, 64), torch.nan)
    begin = time.monotonic()
    with pytest.raises(ExecutorFailed, match=f"expert worker 0 of {threads} did not answer within 0.05 s"):
        executor.run(parts, x, y, timeout_s=0.05)
    assert "compute no more experts" in caplog.text
    assert executor.failed is not None
    with pytest.raises(ExecutorFailed, match="worker 0"):
        executor.run(parts, x, y)
    executor.close()
    assert time.monotonic() - begin < 0.5, "close() waited for the worker that hangs"
    until(lambda: workers() == [])
    assert bool(y.isnan().all()), "a worker wrote after it had been given up"


def test_other_executors_go_on_beside_a_broken_one(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(64, 9, torch.bfloat16)
    x = torch.randn(1, 64).bfloat16()
    parts = [bank.part(0, 0, 9, 0)]
    broken, other = executor_of(bank.shape, 2), executor_of(bank.shape, 2)
    broken.stall_for_test(0.3)
    with pytest.raises(ExecutorFailed):
        broken.run(parts, x, torch.empty(1, 64), timeout_s=0.01)
    check(other, bank, parts, x)


def test_what_does_not_fit_is_refused(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(64, 9, torch.bfloat16)
    x, y = torch.randn(2, 64).bfloat16(), torch.empty(1, 64)
    both: list[RecordExecutor] = [executor_of(bank.shape), TorchExecutor(bank.shape)]
    for executor in both:
        for part in [(0, 10, 0), (-1, 5, 0), (6, 5, 0), (0, 9, 2), (0, 9, -1)]:
            with pytest.raises(ValueError, match="outside of 9 records and 2 rows"):
                executor.run([bank.part(0, *part)], x, y)
        good = [bank.part(0, 0, 9, 0)]
        for wrong in (x[:, :32], x.float(), x[0], torch.randn(64, 2).bfloat16().T):
            with pytest.raises(ValueError, match=r"x must be"):
                executor.run(good, wrong, y)
        for target in (torch.empty(2, 64), torch.empty(1, 64, dtype=torch.float64), torch.empty(1, 32)):
            with pytest.raises(ValueError, match=r"y must be"):
                executor.run(good, x, target)


def test_the_library_looks_at_bounds_too(executor_of: Callable[..., NativeExecutor]) -> None:
    bank = make_bank(64, 9, torch.bfloat16)
    x, y = torch.randn(2, 64).bfloat16(), torch.empty(1, 64)
    team = executor_of(bank.shape)._team
    for part in [bank.part(0, 0, 10, 0), bank.part(0, 0, 9, 2), RecordPart(0, 0, 9, 0)]:
        with pytest.raises(ValueError, match="outside"):
            team.run([part], [y.data_ptr()], x.data_ptr(), 2, 1.0)


def test_a_dtype_without_a_kernel_is_refused() -> None:
    for make in (NativeExecutor, TorchExecutor):
        with pytest.raises(EngineError, match=r"float16 have no kernel"):
            make(RecordShape(64, 8, torch.float16, 4096))


def test_the_choice_of_an_executor(monkeypatch: pytest.MonkeyPatch, library: None) -> None:
    shape = RecordShape(64, 8, torch.bfloat16, 4096)
    executor = record_executor(shape, threads=1)
    assert isinstance(executor, NativeExecutor)
    executor.close()
    monkeypatch.setattr(native, "load", lambda: None)
    fallback = record_executor(shape)
    assert isinstance(fallback, TorchExecutor)
    assert fallback.isa == "torch"
    fallback.close()
    with pytest.raises(ExecutorFailed, match="closed"):
        fallback.run([], torch.empty(1, 64).bfloat16(), torch.empty(0, 64))
    with pytest.raises(EngineError, match="no native library"):
        NativeExecutor(shape)

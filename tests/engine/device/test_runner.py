"""A device runner over several requests, in company, through faults and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.device.experts import DeviceExperts
from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.experts.costs import CostModel
from ftagent.engine.experts.native_executor import NativeExecutor
from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions, Mode
from ftagent.engine.steps import LoadedModel
from ftagent.errors import EngineError
from tests.engine.models.driving import Request, logits_by_chunks
from tests.engine.models.tiny import Oracle
from tests.support.device_twin import load_on, twin_options

TOLERANCE = 2e-4
SMALL = {"num_hidden_layers": 2, "full_attention_interval": 2, "initializer_range": 0.1}
FAMILIES = ["qwen3_moe", "qwen3_5_moe"]
MODES: list[tuple[Mode, str | None]] = [
    ("fused", None),
    ("offload", "5"),
    ("hybrid", "4"),
    ("hybrid", "0.5"),
    ("cpu", "1"),
    ("cpu", None),
    ("auto", "7"),
]

on_a_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="takes the interpreter minutes")


@contextmanager
def loaded(
    device: torch.device, directory: Path, options: EngineOptions, dtype: torch.dtype = torch.float32
) -> Iterator[DeviceRunner]:
    runner = load_on(device, directory, options, dtype)
    try:
        yield runner
    finally:
        runner.close()


def check_alone(runner: LoadedModel, oracle: Oracle, count: int, prompt: int, seed: int) -> None:
    """One request from prompt to end: every logit is the oracle's."""
    tokens = oracle.tokens(count, seed)
    expected = oracle.logits(tokens)
    for position, row in logits_by_chunks(runner, tokens, [prompt]).items():
        assert float((row.cpu() - expected[position]).abs().max()) < TOLERANCE, position
    assert runner.experts is not None
    runner.experts.check_integrity()


@on_a_device
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("mode", "experts"), [("fused", None), ("offload", "5"), ("hybrid", "6")])
def test_requests_behind_each_other(
    family: str, mode: Mode, experts: str | None, tmp_path: Path, device: torch.device
) -> None:
    """What decode has moved in and out of slots is right for the next prompt, four times."""
    oracle = Oracle(family, tmp_path, 4, {"initializer_range": 0.1})
    with loaded(device, tmp_path, twin_options(mode, experts, context=256)) as runner:
        for turn, prompt in enumerate((40, 3, 130, 17)):
            check_alone(runner, oracle, prompt + 20, prompt, turn)


@on_a_device
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("mode", "experts"), [("fused", None), ("offload", "6"), ("hybrid", "6")])
def test_two_requests_at_once(
    family: str, mode: Mode, experts: str | None, tmp_path: Path, device: torch.device
) -> None:
    """One decodes while the other's prompt is computed in the same step; then both decode."""
    oracle = Oracle(family, tmp_path, 5, {"initializer_range": 0.1})
    texts = [oracle.tokens(60, seed) for seed in (1, 2)]
    expected = [oracle.logits(tokens) for tokens in texts]
    with loaded(device, tmp_path, twin_options(mode, experts, max_running=2)) as runner:
        first, second = Request(runner), Request(runner)
        first.feed(texts[0][:20])
        steps: list[list[tuple[int, Request, int]]] = [[(0, first, 1), (1, second, 33)]]
        steps += [[(0, first, 1), (1, second, 1)] for _ in range(26)]
        for step in steps:
            chunks = []
            for which, request, count in step:
                chunks.append(request.chunk(texts[which][request.length : request.length + count]))
            for (which, request, _), row in zip(step, runner.step(chunks), strict=True):
                distance = float((row.cpu() - expected[which][request.length - 1]).abs().max())
                assert distance < TOLERANCE, (which, request.length)
        for request in (first, second):
            request.close()


def decode_together(runner: LoadedModel, texts: list[list[int]], prompt: int) -> list[torch.Tensor]:
    """Prompts one by one, then all texts token by token in common steps: logits [steps, vocab] of each."""
    requests = [Request(runner) for _ in texts]
    for request, tokens in zip(requests, texts, strict=True):
        request.feed(tokens[:prompt])
    rows = []
    for place in range(prompt, len(texts[0])):
        chunks: list[Chunk] = [
            request.chunk([tokens[place]]) for request, tokens in zip(requests, texts, strict=True)
        ]
        rows.append(runner.step(chunks))
    for request in requests:
        request.close()
    return list(torch.stack(rows, 1))


@on_a_device
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_company_changes_no_bit(
    family: str, dtype: torch.dtype, tmp_path: Path, device: torch.device
) -> None:
    """1 to 8 rows, with every expert resident: else the split between link and CPU depends on the time."""
    oracle = Oracle(family, tmp_path, 6, {})
    texts = [oracle.tokens(18, seed) for seed in range(8)]
    with loaded(device, tmp_path, twin_options("fused", max_running=8), dtype) as runner:
        alone = [decode_together(runner, [tokens], 13)[0] for tokens in texts]
        assert not torch.equal(alone[0], alone[1])
        for count in range(1, 9):
            for row, found in enumerate(decode_together(runner, texts[:count], 13)):
                assert torch.equal(found, alone[row]), (count, row)


def greedy(runner: LoadedModel, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The reply, and the smallest distance between the best and the second best logit on the way."""
    request = Request(runner)
    row = request.feed(prompt)
    reply: list[int] = []
    gap = float("inf")
    for _ in range(count):
        best = row.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        reply.append(int(best.indices[0]))
        row = request.feed(reply[-1:])
    request.close()
    return reply, gap


@on_a_device
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_replies_are_those_of_the_cpu(family: str, tmp_path: Path, device: torch.device) -> None:
    """60 tokens in every mode, from a prompt whose reply leaves no choice to rounding."""
    oracle = Oracle(family, tmp_path, 7, {})
    reference = load_runner(tmp_path, EngineOptions(device="cpu", threads=1, context=128), torch.float32)
    for seed in range(40):
        prompt = oracle.tokens(30, seed)
        expected, gap = greedy(reference, prompt, 60)
        if gap > 5e-3:
            break
    else:
        pytest.fail("no prompt whose reply is clear")
    for mode, experts in MODES:
        with loaded(device, tmp_path, twin_options(mode, experts)) as runner:
            assert greedy(runner, prompt, 60)[0] == expected, (mode, experts)


@on_a_device
@pytest.mark.parametrize("mode", ["offload", "hybrid"])
def test_as_few_slots_as_one_token_needs(mode: Mode, tmp_path: Path, device: torch.device) -> None:
    """Fewer slots than layers: no layer has a slot of its own."""
    oracle = Oracle("qwen3_moe", tmp_path, 8, {"initializer_range": 0.1})
    with loaded(device, tmp_path, twin_options(mode, "3")) as runner:
        for turn in range(2):
            check_alone(runner, oracle, 50, 20, turn)
        assert runner.experts is not None
        assert runner.experts.stats().misses > 0


@pytest.mark.parametrize("mode", ["hybrid", "cpu"])
def test_a_single_slot_in_a_model_whose_tokens_ask_for_one_expert(
    mode: Mode, tmp_path: Path, device: torch.device
) -> None:
    oracle = Oracle("qwen3_moe", tmp_path, 8, {**SMALL, "num_experts_per_tok": 1})
    with loaded(device, tmp_path, twin_options(mode, "1")) as runner:
        check_alone(runner, oracle, 8, 4, 0)


def executor_of(runner: DeviceRunner) -> NativeExecutor:
    assert runner.experts is not None
    host = runner.experts.prefill._host
    assert host is not None
    assert isinstance(host._executor, NativeExecutor)
    return host._executor


def feed_all(request: Request, tokens: list[int]) -> None:
    for token in tokens:
        request.feed([token])


def test_a_hanging_worker_costs_one_step(tmp_path: Path, device: torch.device) -> None:
    """The step fails with its reason; behind it prompts and decode do without the CPU, with a slot for every
    expert of a token in each layer.
    """
    oracle = Oracle("qwen3_moe", tmp_path, 9, SMALL)
    with loaded(device, tmp_path, twin_options("hybrid", "7")) as runner:
        assert runner.experts is not None
        conductor, executor = runner.experts._conductor, executor_of(runner)
        assert conductor is not None
        check_alone(runner, oracle, 7, 5, 0)
        request = Request(runner)
        request.feed(oracle.tokens(5, 1))
        conductor.set_costs(CostModel(fetch_expert=10**9, cpu_expert=1000))  # all misses go to the CPU
        conductor.set_watchdog(0.2, 60)
        executor.stall_for_test(2.0)
        with pytest.raises(EngineError, match=r"CPU worker 0 did not end its part within 0\.2 s"):
            feed_all(request, oracle.tokens(40, 2))
        request.close()
        assert executor.failed is not None
        for turn in range(2):
            check_alone(runner, oracle, 8, 5, 3 + turn)
        assert runner.experts.mode == "offload"


def test_closing_twice_ends_the_threads(tmp_path: Path, device: torch.device) -> None:
    Oracle("qwen3_moe", tmp_path, 10, SMALL)
    runner = load_on(device, tmp_path, twin_options("hybrid", "4"), torch.float32)
    assert runner.experts is not None
    executor = executor_of(runner)
    runner.close()
    runner.close()
    assert executor.failed == "the expert executor is closed"
    assert all(not bank.pinned for bank in runner.experts._tables.banks)


@pytest.mark.parametrize("place", ["prepare", "fill"])
@pytest.mark.parametrize("error", [RuntimeError("out of device memory"), KeyboardInterrupt()])
def test_a_start_that_fails_gives_everything_back(
    place: str, error: BaseException, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Oracle("qwen3_moe", tmp_path, 11, SMALL)
    seen: list[DeviceRunner] = []

    def prepare(runner: DeviceRunner) -> None:
        seen.append(runner)
        if place == "prepare":
            raise error

    def fill(experts: DeviceExperts, heat: object) -> None:
        raise error

    monkeypatch.setattr(DeviceRunner, "prepare", prepare)
    monkeypatch.setattr(DeviceExperts, "fill", fill)
    with pytest.raises(type(error)):
        load_on(device, tmp_path, twin_options("hybrid", "4"), torch.float32)
    (runner,) = seen
    assert executor_of(runner).failed == "the expert executor is closed"
    assert runner.experts is not None
    assert all(not bank.pinned for bank in runner.experts._tables.banks)

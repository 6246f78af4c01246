"""The benchmark of a whole decode step runs, and leaves out and changes what it says."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import decode_step
from benchmarks.decode_model import SHAPES, Maker, make_layers, make_step, step_bytes
from benchmarks.decode_step import Bench, Setting, intercepted, settings
from ftagent.engine.device.dense import DeltaStep
from ftagent.engine.kernels.gpu import delta

TINY = SHAPES["tiny"]


@pytest.mark.slow
def test_a_report_has_every_case(
    device: torch.device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict(list(decode_step.CHOICES.items())[:2])
    monkeypatch.setattr(decode_step, "CHOICES", few)
    decode_step.main(["--model", "tiny", "--context", "70", "--part", "whole", "choices"])
    printed = capsys.readouterr().out
    lines = re.findall(r"^  .*(?:us  |us, )", printed, re.M)
    assert len(lines) == 3 + len(few)
    assert "UNSTEADY" not in printed


def test_a_kind_that_is_left_out_is_not_launched(device: torch.device) -> None:
    bench = Bench(TINY, 70, 1)
    case = bench.add("whole")
    step, kinds = case.step, set(case.labels)
    assert {"_attend", "_join", "_step", "_convolve", "experts_kernel", "combine_kernel"} <= kinds
    head = f"_norm_linear {TINY.vocabulary}"
    assert head in kinds
    eager = make_step(bench.model, 70, 1)
    for left_out in (head, ""):
        eager.outputs.logits.fill_(float("nan"))
        with intercepted(lambda kind, left_out=left_out: kind != left_out):  # type: ignore[misc]
            eager.launch()
        assert bool(eager.outputs.logits.isnan().all()) == (left_out == head)
    step.launch()
    assert bool(step.outputs.logits.isfinite().all())


def test_settings_hold_inside_only() -> None:
    before = delta.CHANNELS
    with settings([Setting(delta, "CHANNELS", before * 2)]):
        assert before * 2 == delta.CHANNELS
    assert before == delta.CHANNELS


def test_bytes_are_those_of_the_tensors() -> None:
    make = Maker(torch.bfloat16, torch.device("cpu"))
    expected = TINY.vocabulary * TINY.hidden * 2
    for layer in make_layers(TINY, make):
        mixer, feed = layer.mixer, layer.feed
        expected += mixer.into.nbytes + mixer.out.nbytes
        assert not hasattr(feed, "gate_up")
        if isinstance(mixer, DeltaStep):
            spec = mixer.spec
            expected += 2 * 4 * spec.value_heads * spec.key_dim * spec.value_dim
            expected += 2 * 4 * spec.kernel * spec.channels
        else:
            expected += 2 * mixer.spec.kv_heads * 70 * mixer.spec.head_dim * 2
        expected += (
            2 * TINY.router_rows * TINY.hidden + TINY.per_token * 3 * TINY.hidden * TINY.intermediate * 2
        )
        expected += TINY.hidden * TINY.shared * 2
    assert step_bytes(TINY, 70, 2) == expected

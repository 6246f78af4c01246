"""New tokens behind a long known prompt bring no more experts into the slots than the same tokens alone.

Counted by the engine's own pool of experts, whose slots are few. That a device's pass is one, whatever the
number of boundaries, is in `device/test_prefixes.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftagent.engine.job import Job
from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.models.tiny import Oracle
from tests.engine.test_scheduler import Bench

EDGES = (0.3, 0.8)  # where the new tokens have block edges, as parts of them


def copies(directory: Path, first: list[int], known: list[int], new: list[int]) -> int:
    """Experts that are copied to compute `new` behind `known`, which is `first` or nothing.

    `first` has been computed before, so the slots hold what it used last in either case. The parts of `new`
    are long enough to ask for every expert: with few tokens chance decides.
    """
    options = EngineOptions(
        threads=1, context=len(first) + len(new) + 64, experts="0.3", mode="offload", max_running=2
    )
    bench = Bench(load_runner(directory, options), anchors=8)
    bench.submit(first, 1)
    bench.drain()
    experts = bench.runner.experts
    assert experts is not None
    before = experts.stats().fetched
    tokens = [*known, *new]
    marks = tuple(len(known) + int(part * len(new)) for part in EDGES)
    job = Job("new", tokens, len(tokens) + 1, marks)
    bench.scheduler.submit(job)
    bench.drain()
    assert job.cached == len(known)
    after = experts.stats().fetched
    assert before is not None
    assert after is not None
    return after - before


@pytest.mark.parametrize(("known", "new"), [(256, 160), (300, 512), (2048, 200), (4100, 320), (8192, 512)])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe"])
def test_new_tokens_behind_a_known_prompt_copy_no_more_than_alone(
    family: str, known: int, new: int, tmp_path: Path
) -> None:
    oracle = Oracle(family, tmp_path, 1, {"max_position_embeddings": 9216})
    first, behind = oracle.tokens(known, seed=1), oracle.tokens(new, seed=2)
    cold, warm = copies(tmp_path, first, [], behind), copies(tmp_path, first, first, behind)
    assert cold > 0
    assert warm <= cold

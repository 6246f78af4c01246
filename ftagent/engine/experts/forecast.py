"""Speed before load: decode and prefill as the measured bandwidths of a machine let expect them.

An estimate in three parts: weights that are read, over the bandwidth of the memory they are in; missing
experts, split as the engine splits them (`costs.choose_split`); and what a layer and a step cost whatever
they do. Pure numbers: knows no torch, no file and no profile. docs/plan.md has the formulas in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp

from ftagent.engine.experts.costs import CostModel, Miss, choose_split
from ftagent.engine.options import Mode

NOMINAL_FLOPS = 10**14  # a second, of a device on prompts
HIT_SCALE, HIT_POWER = 4.06, 0.65
GRAIN = 16  # records: an expert that link and CPU share is cut at a multiple


@dataclass(frozen=True, slots=True)
class Work:
    """What a model asks for. Bytes and weights are of one token behind a short prompt."""

    layers: int
    moe_layers: int
    experts: int  # of one layer
    per_token: int  # of them
    intermediate: int  # records of an expert
    expert_weights: int
    expert_bytes: int  # in a slot
    dense_bytes: int  # read for each token: all weights but routed experts and the embedding table
    weights: int  # that a token is multiplied with, those of its experts included


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does. `costs` are those of the model's experts on link and CPU.

    `layer_ns` is what a layer takes beyond reading its weights, `step_ns` what a step does beyond its layers
    (launch, sampling, the next inputs), `wait_ns` what a layer waits for beyond the work on its misses.
    """

    costs: CostModel
    bytes_per_s: int  # of the memory with the dense weights
    layer_ns: int
    step_ns: int
    wait_ns: int = 0


# Fixed costs as seen on one H200, and on two cores for the CPU: docs/plan.md.
DEVICE_NS = (22_000, 600_000, 40_000)
CPU_NS = (250_000, 300_000, 0)


def hit_rate(share: float) -> float:
    """Part of the look-ups that find their expert when slots hold `share` (0 to 1) of all experts.

    1 - exp(-4.06 share^0.65): replacement of the least recently used, fitted to published hit rates of Qwen's
    and DeepSeek's routers on text. Workloads spread by 5 points about it, and random routing stays below.
    """
    return 1.0 if share >= 1 else 1 - exp(-HIT_SCALE * max(share, 0.0) ** HIT_POWER)


def device_decode(work: Work, slots: int, mode: Mode, rates: Rates) -> float:
    """Tokens per second of one request, with all but the experts on a device and `slots` experts there."""
    total = work.moe_layers * work.experts
    found = hit_rate(slots / total) if total else 1.0
    routed = work.moe_layers * _layer_ns(work, found, mode, rates)
    return 1e9 / (_fixed_ns(work, rates) + routed)


def device_prefill(work: Work, slots: int, chunk: int, rates: Rates) -> float:
    """Tokens per second of prompts of `chunk` tokens or more, of which a pass takes so many: the experts that
    have no slot cross the link once for each pass, while the device computes.
    """
    missing = work.moe_layers * work.experts - slots
    compute_ns = chunk * 2 * work.weights * 1e9 / NOMINAL_FLOPS
    return chunk * 1e9 / max(missing * rates.costs.fetch_expert, compute_ns)


def cpu_decode(work: Work, rates: Rates) -> float:
    """Tokens per second of one request where everything is in host memory: a step reads what it uses."""
    routed = work.moe_layers * work.per_token * work.expert_bytes * 1e9 / rates.bytes_per_s
    return 1e9 / (_fixed_ns(work, rates) + routed)


def cpu_prefill(work: Work, chunk: int, rates: Rates) -> float:
    """Tokens per second of prompts of `chunk` tokens or more on the CPU, attention left out: each expert is
    read once for a pass, and a weight takes for a token what it takes in a further row of an expert.
    """
    row = rates.costs.cpu_row
    read = work.experts * work.expert_bytes * 1e9 / rates.bytes_per_s
    routed = work.moe_layers * (read + chunk * work.per_token * row)
    dense = work.weights - work.moe_layers * work.per_token * work.expert_weights
    dense_ns = chunk * dense * row / max(work.expert_weights, 1)
    return chunk * 1e9 / (routed + dense_ns + _fixed_ns(work, rates))


def _fixed_ns(work: Work, rates: Rates) -> float:
    """Dense weights of one token, and what every layer and the step take."""
    return work.dense_bytes * 1e9 / rates.bytes_per_s + work.layers * rates.layer_ns + rates.step_ns


def _layer_ns(work: Work, found: float, mode: Mode, rates: Rates) -> float:
    """Mean time of one layer's experts: over the numbers of misses, as if the look-ups of a token were
    independent of each other.
    """
    mean = 0.0
    for misses in range(work.per_token + 1):
        hits = work.per_token - misses
        chance = comb(work.per_token, misses) * (1 - found) ** misses * found**hits
        hits_ns = hits * work.expert_bytes * 1e9 / rates.bytes_per_s
        mean += chance * max(hits_ns, _misses_ns(work, misses, mode, rates))
    return mean


def _misses_ns(work: Work, misses: int, mode: Mode, rates: Rates) -> float:
    if not misses:
        return 0.0
    records, costs = work.intermediate, rates.costs
    grain = max(1, min(GRAIN, records // 4))
    fetched = sum(choose_split(costs, [Miss(1)] * misses, records, grain, mode=mode))
    left = misses * records - fetched
    return rates.wait_ns + max(costs.link_ns(fetched, records), costs.compute_ns(left, left, records))

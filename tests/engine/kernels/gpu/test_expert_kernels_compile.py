"""The expert kernels compile for every kind of device, at the sizes of real models, without spilling."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import triton

from ftagent.engine.kernels.gpu.combine import COLUMNS, INNER
from ftagent.engine.kernels.gpu.device import Device
from ftagent.engine.kernels.gpu.expert_plan import MAX_UPDATES, PATIENCE_NS, plan_experts
from ftagent.engine.kernels.gpu.experts import HOST_COLUMNS
from ftagent.engine.kernels.gpu.grouped import choose_rows, choose_tile
from tests.engine.kernels.compiling import Case, compile_all, cuobjdump

GPU = "ftagent.engine.kernels.gpu."
DEVICES = {
    80: Device(80, 163 << 10, 108),
    89: Device(89, 99 << 10, 128),
    90: Device(90, 227 << 10, 132),
    120: Device(120, 99 << 10, 170),
}


@dataclass(frozen=True)
class Model:
    hidden: int
    intermediate: int
    experts: int
    per_token: int
    shared: int


FRAME = 16  # bytes
MODELS = {
    "30b": Model(2048, 768, 128, 8, 0),
    "35b": Model(2048, 512, 256, 8, 512),
    "gpt-oss-20b": Model(2880, 2880, 32, 4, 0),
}


def pow2(size: int) -> int:
    return int(triton.next_power_of_2(size))


def route_case(model: Model) -> Case:
    types = ("*fp32", "*i32", "*i32", "*fp32", "*i32", "*i32", "*i32")
    constants = {
        "WIDTH": 2 * model.experts, "E": model.experts, "EP": model.experts, "K": model.per_token,
        "KP": pow2(model.per_token), "RENORMALISE": True, "GUESS_AT": model.experts, "G": model.per_token,
    }  # fmt: skip
    return Case(GPU + "route", "route_kernel", types, dict(constants), warps=1)


SILU: dict[str, float | bool | None] = {"BIASED": False, "ALPHA": 1.0, "LIMIT": None, "OFFSET": 0.0}
CLAMPED: dict[str, float | bool | None] = {"BIASED": True, "ALPHA": 1.702, "LIMIT": 7.0, "OFFSET": 1.0}


def experts_case(model: Model, device: Device, rows: int, host: int, *, clamped: bool = False) -> Case:
    plan = plan_experts(model.hidden, model.intermediate, model.per_token, 2, device)
    pairs, guesses = rows * model.per_token, model.per_token * host
    sums = ("*bf16", "*fp32", "*fp32")
    types = ("*bf16", *["*i32"] * 4, "*i64", *["*i32"] * 8, *sums, *["i64"] * 14, "i32", "i32")
    constants = {
        "P": pairs, "PP": pow2(pairs), "LAUNCHED": pow2(pairs), "K": model.per_token,
        "KP": pow2(model.per_token), "G": guesses, "GP": pow2(max(1, rows * guesses)),
        "H": model.hidden, "HP": pow2(model.hidden),
        "RECORDS": model.intermediate, "RUN": plan.run, "BLOCK": plan.block, "CHUNKS": plan.chunks,
        "STAGES": plan.stages, "UPDATES": MAX_UPDATES, "HOST": host,
        "STRIPS": model.hidden // HOST_COLUMNS, "STRIP": HOST_COLUMNS, "PATIENCE": PATIENCE_NS,
        **(CLAMPED if clamped else SILU),
    }  # fmt: skip
    return Case(GPU + "experts", "experts_kernel", types, dict(constants), plan.warps, plan.stages)


def combine_case(model: Model, device: Device, rows: int, host: int, *, biased: bool = False) -> Case:
    plan = plan_experts(model.hidden, model.intermediate, model.per_token, 2, device)
    pairs = rows * model.per_token
    types = (*["*fp32"] * 3, *["*i32"] * 4, "*fp32", "*bf16", "*bf16", "*i32", "*fp32", "i32")
    constants = {
        "P": pairs, "K": model.per_token, "KP": pow2(model.per_token), "H": model.hidden,
        "BN": COLUMNS, "BLOCKS": model.hidden // COLUMNS, "RECORDS": model.intermediate, "RUN": plan.run,
        "CHUNKS": plan.chunks, "CP": pow2(plan.chunks), "WIDTH": 2048, "AT": model.experts,
        "INNER": model.shared, "BI": min(INNER, pow2(max(1, model.shared))), "HOST": host, "BIASED": biased,
    }  # fmt: skip
    return Case(GPU + "combine", "combine_kernel", types, dict(constants))


def grouped_cases(model: Model, device: Device, rows_per_group: int) -> list[Case]:
    tile = choose_tile(choose_rows(rows_per_group), 2, device)
    shape: dict[str, int | float | bool | str | None] = {
        "H": model.hidden, "RECORDS": model.intermediate, "BM": tile.rows, "BN": tile.columns,
        "BK": tile.depth, "PRECISION": "tf32",
    }  # fmt: skip
    up = {**shape, "K": model.per_token, "BLOCKS": -(-2 * model.intermediate // tile.columns)}
    clamped = {**up, **CLAMPED}
    up |= SILU
    down = {**shape, "BLOCKS": -(-model.hidden // tile.columns)}
    up_types = ("*bf16", "*i32", "*i32", "*i64", "*i32", "*bf16", "*i32", "*bf16", "i32")
    down_types = ("*bf16", "*i32", "*i64", "*i32", "*bf16", "i32")
    return [
        Case(GPU + "grouped", "gate_up_kernel", up_types, up, tile.warps, tile.stages),
        Case(GPU + "grouped", "gate_up_kernel", up_types, clamped, tile.warps, tile.stages),
        Case(GPU + "grouped", "down_kernel", down_types, down, tile.warps, tile.stages),
    ]


def small_cases(model: Model) -> list[Case]:
    tiles = {"GP": pow2(model.experts), "ROWS": 128, "PROBE": 32}
    scatter = {"K": model.per_token, "H": model.hidden, "BN": 1024}
    return [
        route_case(model),
        Case(GPU + "grouped", "tiles_kernel", ("*i32", "*i32", "i32", "i32"), dict(tiles), 1),
        Case(GPU + "grouped", "scatter_kernel", ("*bf16", "*i32", "*fp32", "*fp32"), dict(scatter)),
    ]


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="Triton here ships no cuobjdump")
@pytest.mark.parametrize("capability", DEVICES)
def test_nothing_spills(capability: int) -> None:
    model, device = MODELS["30b"], DEVICES[capability]
    cases = [experts_case(model, device, 1, 0), experts_case(model, device, 8, 1)]
    cases += [combine_case(model, device, 8, 1), *grouped_cases(model, device, 8)]
    check([*cases, *grouped_cases(model, device, 512)], capability)


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="Triton here ships no cuobjdump")
@pytest.mark.parametrize("capability", [80, 90])
def test_nothing_spills_with_biases_and_clamps(capability: int) -> None:
    """Rows of 2,880 elements, whose tiles are padded to 4,096."""
    model, device = MODELS["gpt-oss-20b"], DEVICES[capability]
    cases = [experts_case(model, device, rows, host, clamped=True) for rows, host in ((1, 0), (8, 1))]
    check([*cases, combine_case(model, device, 8, 1, biased=True)], capability)


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="Triton here ships no cuobjdump")
def test_nothing_spills_with_a_shared_expert() -> None:
    model, device = MODELS["35b"], DEVICES[90]
    cases = [experts_case(model, device, 1, 1), combine_case(model, device, 1, 1)]
    check([*cases, *small_cases(model), *grouped_cases(model, device, 64)], 90)


def check(cases: list[Case], capability: int) -> None:
    used = compile_all(cases, (capability,))
    assert len(used) == len(cases)
    # A frame of some bytes without local memory is no spill: the assembler keeps room it does not use.
    assert [line for line in used if line.local or line.stack > FRAME] == []
    assert [line for line in used if line.shared > DEVICES[capability].shared] == []

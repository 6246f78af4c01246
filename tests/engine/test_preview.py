"""What `preview` says of a model, held against what a real load allocates; and what it never does."""

from __future__ import annotations

import gc
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import transformers

from ftagent import demo
from ftagent.engine.convert import convert
from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.load import load_runner
from ftagent.engine.models.decoder import Decoder
from ftagent.engine.options import EngineOptions
from ftagent.engine.planner import GIB, Plan, plan_cpu
from ftagent.engine.preview import Preview, preview
from ftagent.engine.runner import Runner
from ftagent.engine.weights.safetensors import Checkpoint
from ftagent.errors import ConfigError, LoadFailed
from tests.engine.models.test_published import RELEASES
from tests.engine.models.tiny import FAMILIES, Oracle

CLOSE = 0.02  # of the bytes that are really there


def taken(plan: Plan) -> dict[str, int]:
    return {pool.kind: pool.bytes for pool in (*plan.pools, *plan.host)}


def tensors_of(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors that an object's fields lead to."""
    if id(value) in seen or isinstance(value, str | int | float | None | type):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each, seen)
    else:
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        for name in names:
            yield from tensors_of(getattr(value, name, None), seen)


def dense_bytes(model: Decoder) -> int:
    """Bytes of memory, each counted once, behind all tensors of the weights."""
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in tensors_of(model.weights, set())
    }
    return sum(storages.values())


def kv_bytes(runner: Runner | DeviceRunner) -> int:
    kv = runner._model.pools.kv
    return sum(kv.layer(layer).nbytes for layer in range(kv.shape.layers))


def state_bytes(runner: Runner | DeviceRunner) -> int:
    states = runner.recurrent
    return states.conv.nbytes + states.recurrent.nbytes + states.windows.stored.nbytes


@pytest.mark.parametrize("family", [*FAMILIES, "embedded"])
def test_the_planned_bytes_are_those_of_a_load(family: str, tmp_path: Path) -> None:
    """The embedded model has its experts in FP8, in FTW."""
    directory = demo.directory() if family == "embedded" else Oracle(family, tmp_path, 5, {}).directory
    options = EngineOptions(device="cpu", context=512, max_running=3)
    plan = preview(directory, options).plan
    runner = load_runner(directory, options)
    assert isinstance(runner, Runner)
    planned = taken(plan)
    assert dense_bytes(runner._model) == pytest.approx(planned["dense"], rel=CLOSE)
    assert kv_bytes(runner) == planned["kv"] == runner.kv.total * runner.kv.page_bytes
    assert state_bytes(runner) == planned["states"]
    assert runner.info.context == plan.context == 512
    assert runner.kept == plan.kept
    if runner.experts is None:
        assert (plan.slots, planned["banks"]) == (0, 0)
        return
    assert runner.experts.slots == plan.slots
    assert runner.experts.slots * runner.experts.slot_bytes == planned["slots"]
    assert sum(bank.nbytes for bank in runner.experts._banks) == planned["banks"]


def test_the_planned_bytes_are_those_of_a_device(tmp_path: Path, device: torch.device) -> None:
    from tests.support.device_twin import load_on

    kinds = ["linear_attention", "full_attention"]
    Oracle("qwen3_5_moe", tmp_path, 5, {"num_hidden_layers": 2, "layer_types": kinds})
    options = EngineOptions(vram="2GiB", experts="5", context=512, max_running=2, threads=1, anchors="64MiB")
    plan = preview(tmp_path, options).plan
    runner = load_on(device, tmp_path, options, torch.float32)
    try:
        planned, experts = taken(plan), runner.experts
        assert experts is not None
        assert dense_bytes(runner._model) == pytest.approx(planned["dense"], rel=CLOSE)
        assert kv_bytes(runner) == planned["kv"]
        assert state_bytes(runner) == planned["states"]
        assert (experts.slots, experts.slots * experts.slot_bytes) == (plan.slots, planned["slots"])
        assert sum(bank.nbytes for bank in experts._tables.banks) == planned["banks"]
        assert experts.prefill._ring.records.nbytes == planned["staging"]
        assert runner.kept == plan.kept
        assert planned["kept"] <= 64 * 2**20
    finally:
        runner.close()


@pytest.mark.parametrize("family", ["qwen3_next", "gpt_oss", "deepseek_v3", "mixtral"])
def test_ftw_and_safetensors_give_the_same_plan(family: str, tmp_path: Path) -> None:
    Oracle(family, tmp_path / "source", 5, {})
    convert(tmp_path / "source", tmp_path / "ftw")
    for options in (EngineOptions(device="cpu", ram="4GiB"), EngineOptions(vram="2GiB", ram="4GiB")):
        found = [preview(tmp_path / name, options) for name in ("source", "ftw")]
        assert found[0].plan == found[1].plan
        assert found[0].sizes == found[1].sizes
        assert found[0].stored == found[1].stored


def _published(model: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a model's tensors in its release, which has a matrix for each part of an expert."""
    for key, value in model.state_dict().items():
        stem, _, last = key.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or not stem.endswith("experts"):
            yield key, tuple(value.shape)
            continue
        experts, rows, columns = value.shape
        for expert in range(experts):
            if last == "down_proj":
                yield f"{stem}.{expert}.down_proj.weight", (rows, columns)
            else:
                yield f"{stem}.{expert}.gate_proj.weight", (rows // 2, columns)
                yield f"{stem}.{expert}.up_proj.weight", (rows // 2, columns)


def write_headers(directory: Path, name: str) -> int:
    """The published checkpoint `name` with an index and sparse files: headers, and no data behind them.
    Returns the bytes that the files pretend to have.
    """
    release = RELEASES[name]
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(release.values))
    with torch.device("meta"):
        described = getattr(transformers, release.config)(**release.values)
        model = getattr(transformers, release.model)(described)
    shapes = dict(_published(model))
    if described.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    header: dict[str, Any] = {}
    index: dict[str, str] = {}
    shard = at = total = 0

    def close() -> None:
        nonlocal shard, header, at
        text = json.dumps(header).encode()
        with (directory / f"model-{shard}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        shard, header, at = shard + 1, {}, 0

    for key, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        index[key] = f"model-{shard}.safetensors"
        at, total = at + size, total + size
        if at > 4 * GIB:
            close()
    if header:
        close()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return total


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a weight is a failure."""

    def read(checkpoint: Checkpoint, name: str, *_: object) -> NoReturn:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(Checkpoint, "read_bytes", read)


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "DeepSeek-V3", "Llama-3.3-70B"])
def test_a_published_shape_is_planned_in_a_second_without_reading(
    name: str, tmp_path: Path, unread: None
) -> None:
    total = write_headers(tmp_path / name, name)
    gc.collect()
    gc.freeze()  # what other tests have loaded is none of a fresh process's
    try:
        began = time.process_time()
        found = preview(tmp_path / name, EngineOptions(vram="200GiB", ram="2TiB", context=8192))
        assert time.process_time() - began < 1
    finally:
        gc.unfreeze()
    weights = taken(found.plan)["dense"] + found.sizes.experts * found.sizes.slot_bytes
    assert weights == pytest.approx(total, rel=0.001)
    assert not found.plan.refusals
    assert found.plan.have == 196 * GIB


def described(directory: Path, **options: Any) -> Preview:
    return preview(directory, EngineOptions(**{"ram": "128GiB", **options}))


def test_a_card_that_is_not_there_is_described_by_its_size(tmp_path: Path, unread: None) -> None:
    write_headers(tmp_path / "m", "Qwen3-30B-A3B")
    found = described(tmp_path / "m", vram="24GiB")
    assert (found.device, found.dtype, found.plan.mode, found.plan.context) == (
        *("cuda", "bfloat16", "hybrid"),
        40_960,
    )
    assert 0 < found.plan.slots < 48 * 128
    assert found.plan.have == 24 * GIB - 24 * GIB // 50
    assert found.plan.device_bytes <= found.plan.have
    larger = described(tmp_path / "m", vram="80GiB")
    assert larger.plan.slots == 48 * 128
    assert found.speed.decode is None
    assert found.speed.unknown is not None


def test_what_does_not_fit_has_a_plan_and_the_reasons(tmp_path: Path, unread: None) -> None:
    write_headers(tmp_path / "m", "Qwen3-30B-A3B")
    small = described(tmp_path / "m", vram="3GiB").plan
    assert "GiB of device memory (vram), 2.750 GiB may be used" in small.refusals[0]
    assert small.device_bytes > (small.have or 0)
    both = described(tmp_path / "m", vram="3GiB", ram="20GiB").plan
    device, host = both.refusals
    assert "GiB of memory, 20.000 GiB may be used (experts 54.000" in host
    assert "experts on disk are not supported yet" in host
    assert device == small.refusals[0]
    with pytest.raises(LoadFailed, match="experts on disk are not supported yet"):
        load_runner(tmp_path / "m", EngineOptions(device="cpu", ram="20GiB"))


def test_what_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    Oracle("mixtral", tmp_path, 5, {})
    with pytest.raises(ConfigError, match="context 5000 is more than the 1024"):
        described(tmp_path, vram="4GiB", context=5000)
    with pytest.raises(ConfigError, match="2 slots are fewer than the 3"):
        described(tmp_path, vram="4GiB", experts="2")
    (tmp_path / "config.json").unlink()
    with pytest.raises(LoadFailed, match=r"config\.json: not found"):
        described(tmp_path, vram="4GiB")


def test_the_plan_is_the_one_that_loading_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle("qwen3_next", tmp_path, 5, {})
    options = EngineOptions(device="cpu", ram="2GiB", vram="800KiB", context=300)
    made: list[Plan] = []

    def watched(*arguments: Any) -> Plan:
        made.append(plan_cpu(*arguments))
        return made[-1]

    monkeypatch.setattr("ftagent.engine.load.plan_cpu", watched)
    load_runner(tmp_path, options)
    assert made == [preview(tmp_path, replace(options)).plan]
    assert 0 < made[0].slots < 32

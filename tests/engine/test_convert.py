"""Safetensors to FTW and back: the bytes by the book, the same tensors, the same output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import deserialize
from safetensors.torch import load_file, save_file

from ftagent import demo
from ftagent.engine.convert import check, convert
from ftagent.engine.experts.bank import ExpertFormat
from ftagent.engine.load import load_runner, open_model
from ftagent.engine.options import EngineOptions
from ftagent.engine.reading import filled_banks
from ftagent.engine.weights.ftw_reader import FtwCheckpoint
from ftagent.errors import ConfigError
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.test_fp8 import BIG, is_stacked, rewrite, stack_experts
from tests.engine.models.test_gpt_oss import PACKABLE, pack
from tests.engine.models.tiny import FAMILIES, Oracle
from tests.support.embedded import as_safetensors
from tests.support.ftw_by_the_book import Book, values

SHARD = 40 * 4096  # small: every model lies in several, and tensors cross their borders

Maker = Callable[[Path], None]


def family(name: str) -> Maker:
    def make(directory: Path) -> None:
        Oracle(name, directory, 3, {})

    return make


def typed(dtype: torch.dtype) -> Maker:
    def make(directory: Path) -> None:
        Oracle("qwen3_moe", directory, 4, {})
        file = directory / "model.safetensors"
        save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)

    return make


def fp8(stacked: bool, prefix: str, scales: torch.dtype) -> Maker:
    def make(directory: Path) -> None:
        Oracle("qwen3_moe", directory, 5, BIG)
        if stacked and not is_stacked(directory):
            stack_experts(directory)
        rewrite(directory, stacked, prefix, scales)

    return make


def mxfp4(directory: Path) -> None:
    pack(Oracle("gpt_oss", directory, 6, PACKABLE), 6)


MAKERS: dict[str, Maker] = {
    **{name: family(name) for name in FAMILIES},
    "bfloat16": typed(torch.bfloat16),
    "float16": typed(torch.float16),
    "fp8": fp8(False, "model.", torch.float32),
    "fp8 stacked": fp8(True, "model.language_model.", torch.bfloat16),
    "mxfp4": mxfp4,
}


@pytest.fixture(scope="module", params=MAKERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint, and what it was converted to."""
    directory = tmp_path_factory.mktemp("round-trip")
    source, target = directory / "source", directory / "target"
    MAKERS[request.param](source)
    (source / "tokenizer_config.json").write_text('{"x": "é"}', encoding="utf-8")
    (source / "chat_template.jinja").write_text("{{ x }}")
    convert(source, target, shard_bytes=SHARD)
    return source, target


def stored_bytes(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in directory.glob("*.safetensors"):
        found.update(deserialize(file.read_bytes()))  # type: ignore[no-untyped-call]
    return found


def test_every_dense_tensor_is_there_as_it_was(pair: tuple[Path, Path]) -> None:
    source, target = pair
    book, stored = Book(target), stored_bytes(source)
    assert len(book.heads) > 1
    dense = {name for name, item in book.tensors.items() if "bank" not in item}
    left = {name for name in stored if name not in dense}
    assert all(".experts." in name for name in left)
    assert not any(".experts." in name for name in dense)
    for name in dense:
        item = book.tensors[name]
        assert (item["dtype"], item["shape"]) == (stored[name]["dtype"], stored[name]["shape"])
        assert book.content(name) == stored[name]["data"]


def test_what_lies_beside_the_weights_is_there(pair: tuple[Path, Path]) -> None:
    source, target = pair
    beside = {file.name for file in source.iterdir()} - {"model.safetensors"}
    assert beside >= {"config.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {file.name for file in target.iterdir() if file.suffix != ".ftw"} == beside
    for name in beside:
        assert (target / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_is_the_same_to_the_bit(pair: tuple[Path, Path], dtype: torch.dtype) -> None:
    tokens = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    found = []
    for directory in pair:
        runner = load_runner(directory, EngineOptions(), dtype)
        logits = logits_by_chunks(runner, tokens, [25, 9])
        found.append(torch.stack(list(logits.values())))
        runner.close()
    assert torch.equal(*found)
    assert len(set(found[0].argmax(-1).tolist())) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_banks_of_any_type_are_filled_alike(pair: tuple[Path, Path], dtype: torch.dtype) -> None:
    """As for a device: whatever is stored, banks hold plain values."""
    banks = []
    for directory in pair:
        opened = open_model(directory, EngineOptions(device="cpu"), dtype)
        with filled_banks(opened, tuple(ExpertFormat(dtype) for _ in opened.formats)) as filled:
            pass
        banks.append(filled)
    for ours, theirs in zip(*banks, strict=True):
        for expert in range(ours.experts):
            assert torch.equal(ours.records(expert), theirs.records(expert))


def test_experts_are_records_by_the_book(tmp_path: Path) -> None:
    oracle = Oracle("qwen3_moe", tmp_path / "source", 0, {})
    convert(tmp_path / "source", tmp_path / "target")
    book, state = Book(tmp_path / "target"), dict(oracle.model.named_parameters())
    for layer in range(4):
        for expert in range(8):
            gate, up = state[f"model.layers.{layer}.mlp.experts.gate_up_proj"][expert].detach().chunk(2)
            down = state[f"model.layers.{layer}.mlp.experts.down_proj"][expert].detach()
            (name, (dtype, shape, content)), *rest = book.pieces(layer, expert).items()
            assert (name, rest) == ("values", [])
            expected = torch.stack((gate, up, down.t()), dim=1)
            assert np.array_equal(values(dtype, shape, content), expected.flatten().numpy())


def test_fp8_experts_keep_codes_and_scales_by_the_book(tmp_path: Path) -> None:
    source = tmp_path / "source"
    fp8(False, "model.", torch.bfloat16)(source)
    convert(source, tmp_path / "target")
    book, stored = Book(tmp_path / "target"), stored_bytes(source)

    def part(layer: int, expert: int, name: str, scales: bool = False) -> Any:
        return stored[
            f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight{'_scale_inv' if scales else ''}"
        ]

    def grid(item: Any) -> Any:
        return values(item["dtype"], tuple(item["shape"]), bytes(item["data"]))

    for layer in range(2):
        for expert in range(8):
            pieces = book.pieces(layer, expert)
            gate, up, down = (part(layer, expert, name) for name in ("gate", "up", "down"))
            assert pieces["gate_up"][2] == gate["data"] + up["data"]
            assert pieces["down"][2] == down["data"]
            assert {kind for kind, _, _ in pieces.values()} == {"F8_E4M3", "F32"}
            expected = [grid(part(layer, expert, name, scales=True)) for name in ("gate", "up")]
            assert np.array_equal(values(*pieces["gate_up_scales"]), np.stack(expected))
            assert np.array_equal(
                values(*pieces["down_scales"]), grid(part(layer, expert, "down", scales=True))
            )


def test_the_set_is_named_by_its_contents(tmp_path: Path) -> None:
    source = tmp_path / "source"
    Oracle("qwen3_moe", source, 0, {})
    names = []
    for number, (shard, threads) in enumerate([(SHARD, 1), (2 * SHARD, 4)]):
        done = convert(source, tmp_path / str(number), shard_bytes=shard, threads=threads)
        names.append(done.set)
        assert check(tmp_path / str(number)).digest == done.set
        assert done.shards == len(list((tmp_path / str(number)).glob("*.ftw")))
        assert done.bytes == sum(file.stat().st_size for file in (tmp_path / str(number)).glob("*.ftw"))
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, source / "model.safetensors")
    names.append(convert(source, tmp_path / "other").set)
    assert names[0] == names[1] != names[2]


def test_large_tensors_lie_on_blocks_and_small_models_are_packed(tmp_path: Path) -> None:
    tables = {"hidden_size": 128, "moe_intermediate_size": 512, "vocab_size": 4096, "num_hidden_layers": 1}
    Oracle("qwen3_moe", tmp_path / "large", 0, tables)
    Oracle("qwen3_moe", tmp_path / "small", 0, {})
    for name, align in (("large", 4096), ("small", 64)):
        convert(tmp_path / name, tmp_path / f"{name}-ftw")
        book = Book(tmp_path / f"{name}-ftw")
        assert {head["align"] for head in book.heads} == {align}
        size = sum(item["bytes"] for item in book.tensors.values())
        assert len(book.region) <= size * 1.04 + 4096


def test_dense_tensors_lie_in_the_order_of_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle("qwen3_5_moe", tmp_path / "source", 0, {})
    convert(tmp_path / "source", tmp_path / "target")
    asked: list[str] = []
    read = FtwCheckpoint.tensor

    def watched(self: FtwCheckpoint, name: str) -> torch.Tensor:
        asked.append(name)
        return read(self, name)

    monkeypatch.setattr(FtwCheckpoint, "tensor", watched)
    load_runner(tmp_path / "target", EngineOptions())
    assert asked == [name for name, item in Book(tmp_path / "target").tensors.items() if "bank" not in item]


def test_progress_counts_every_byte_twice(tmp_path: Path) -> None:
    Oracle("qwen3_moe", tmp_path / "source", 0, {})
    seen: list[tuple[str, int, int]] = []
    convert(tmp_path / "source", tmp_path / "target", progress=lambda *step: seen.append(step))
    for phase in ("writing", "checking"):
        steps = [(done, total) for name, done, total in seen if name == phase]
        assert steps == sorted(steps)
        assert len({total for _, total in steps}) == 1
        assert steps[-1][0] == steps[-1][1]


def test_the_embedded_model_answers_as_its_safetensors_do(tmp_path: Path) -> None:
    source = as_safetensors(tmp_path / "source")
    runners = [load_runner(directory, EngineOptions()) for directory in (source, demo.directory())]
    tokens = list(range(300, 340))
    found = [torch.stack(list(logits_by_chunks(runner, tokens, [30]).values())) for runner in runners]
    assert torch.equal(*found)


@pytest.mark.parametrize("where", ["source", "target", "file", "full", "ftw"])
def test_places_that_are_not_fit_are_refused(tmp_path: Path, where: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    Oracle("qwen3_moe", source, 0, {})
    if where == "source":
        target, words = source, "is the source"
    elif where == "file":
        target.write_text("x")
        words = "a file; give a directory"
    elif where == "full":
        target.mkdir()
        (target / "notes.txt").write_text("x")
        words = "is not empty"
    else:
        convert(source, target)
        words = "holds an FTW model already"
        if where == "ftw":
            source, target, words = target, tmp_path / "third", "is FTW already"
    before = sorted(file.name for file in tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=words):
        convert(source, target)
    assert sorted(file.name for file in tmp_path.rglob("*")) == before


def test_headers_say_what_made_them(tmp_path: Path) -> None:
    Oracle("qwen3_moe", tmp_path / "source", 0, {})
    convert(tmp_path / "source", tmp_path / "target")
    (head,) = Book(tmp_path / "target").heads
    text = json.dumps(head, sort_keys=True, separators=(",", ":"))
    assert text.encode() in (tmp_path / "target" / "model-00001-of-00001.ftw").read_bytes()

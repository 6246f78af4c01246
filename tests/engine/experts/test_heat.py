"""Saved heat: comes back as it went, tolerates any damage, and orders the first fill."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ftagent.engine.experts.heat import fill_order, fingerprint, heat_file, load_heat, save_heat
from ftagent.engine.weights.safetensors import open_checkpoint

HEAT = [[3, 0, 7], [2**40, 1, 0]]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "heat.json"
    assert load_heat(file, 2, 3) is None
    save_heat(file, HEAT)
    assert load_heat(file, 2, 3) == HEAT
    save_heat(file, [[0, 0, 1], [1, 1, 1]])
    assert load_heat(file, 2, 3) == [[0, 0, 1], [1, 1, 1]]
    assert [found.name for found in file.parent.iterdir()] == ["heat.json"], "nothing is left beside it"


def test_another_shape_is_none(tmp_path: Path) -> None:
    file = tmp_path / "heat.json"
    save_heat(file, HEAT)
    assert load_heat(file, 3, 3) is None
    assert load_heat(file, 2, 4) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"version": 1}',
        '{"version": 2, "counts": [[3, 0, 7], [1, 1, 0]]}',
        '{"version": 1, "counts": [[3, 0, 7], [1, -1, 0]]}',
        '{"version": 1, "counts": [[3, 0, 7], [1, 0.5, 0]]}',
        '{"version": 1, "counts": {"0": 1, "1": 2}}',
        '{"version": 1, "counts": [[3, 0, 7], 5]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "heat.json"
    file.write_text(text)
    assert load_heat(file, 2, 3) is None


def test_any_cut_or_flipped_byte_is_none_or_whole(tmp_path: Path) -> None:
    file = tmp_path / "heat.json"
    save_heat(file, HEAT)
    content = file.read_bytes()
    generator = random.Random(0)
    for _ in range(200):
        damaged = bytearray(content[: generator.randint(0, len(content))])
        if damaged:
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        file.write_bytes(damaged)
        found = load_heat(file, 2, 3)
        assert found is None or (len(found) == 2 and all(len(layer) == 3 for layer in found))


def test_a_place_that_cannot_be_written_is_only_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        save_heat(tmp_path / "file" / "heat.json", HEAT)
    assert "cannot be written" in caplog.text


def test_the_fingerprint_follows_names_and_shapes(tmp_path: Path) -> None:
    def key(**tensors: torch.Tensor) -> str:
        save_file(tensors, tmp_path / "model.safetensors")
        return fingerprint(open_checkpoint(tmp_path))

    first = key(a=torch.zeros(4), b=torch.zeros(2))
    assert first == key(a=torch.ones(4), b=torch.ones(2))
    assert (
        len({first, key(a=torch.zeros(4), c=torch.zeros(2)), key(a=torch.zeros(2, 2), b=torch.zeros(2))}) == 3
    )
    assert heat_file(first).name == f"{first}.json"


def test_fill_order_is_hottest_first_and_without_heat_layer_by_layer() -> None:
    assert list(fill_order(2, 3)) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert list(fill_order(2, 3, HEAT)) == [(1, 0), (0, 2), (0, 0), (1, 1), (0, 1), (1, 2)]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    save_heat(tmp_path / "heat.json", HEAT)
    assert json.loads((tmp_path / "heat.json").read_text()) == {"version": 1, "counts": HEAT}

"""The scripted checkpoints: every engine follows the walk, and routes it alike."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.walk.reference import load, run
from benchmarks.walk.script import NOISE, Dials, routing_vectors, write_script
from benchmarks.walk.shapes import SHAPES, TINY, Family
from benchmarks.walk.spaces import divide
from benchmarks.walk.statistics import Routing, lru_hit, measure, overlap, top_share
from benchmarks.walk.vocabulary import words_of
from benchmarks.walk_checkpoint import Made, make_checkpoint
from ftagent.engine.experts.pool import ExpertPool
from ftagent.engine.load import load_runner
from ftagent.engine.models.registry import model_config
from ftagent.engine.options import EngineOptions
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.runner import Runner
from tests.engine.models.driving import Request

FAMILIES: tuple[Family, ...] = ("qwen3_moe", "qwen3_5_moe")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    torch.set_num_threads(1)
    name: Family = request.param
    return name


@pytest.fixture(scope="module")
def directory(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(family)


@pytest.fixture(scope="module")
def made(family: Family, directory: Path) -> Made:
    return make_checkpoint(directory, TINY[family], None, seed=5, device="cpu", threads=2)


@pytest.fixture(scope="module")
def reference(family: Family, directory: Path, made: Made) -> Any:
    return load(directory, TINY[family], TINY[family].layers, torch.float32, torch.device("cpu"))


def test_transformers_follows_the_walk_greedily(reference: Any, made: Made) -> None:
    start, count = 37, 24
    prompt = torch.from_numpy(made.script.walk[start : start + 30])[None]
    limits = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    tokens = reference.generate(prompt, attention_mask=torch.ones_like(prompt), **limits)[0, 30:]
    assert tokens.tolist() == made.script.walk[start + 30 : start + 30 + count].tolist()


def test_ids_off_the_walk_lead_into_it(reference: Any, made: Made) -> None:
    others = np.setdiff1d(np.arange(len(made.script.successor)), made.script.walk)
    strays = np.random.default_rng().choice(others, 40)
    found = run(reference, strays.tolist(), per_token=4)
    assert found.following.tolist() == made.script.successor[strays[found.places]].tolist()
    assert set(found.following.tolist()) <= set(made.script.walk.tolist())


def test_our_engine_follows_the_walk_and_routes_it_as_transformers_does(
    family: Family, directory: Path, made: Made, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed: list[torch.Tensor] = []
    forward = ExpertPool.forward

    def recorded(pool: ExpertPool, layer: int, x: torch.Tensor, chosen: torch.Tensor, *rest: Any) -> Any:
        routed.append(chosen.clone())
        return forward(pool, layer, x, chosen, *rest)

    monkeypatch.setattr(ExpertPool, "forward", recorded)
    shape, start, prompt, new = TINY[family], 101, 50, 16
    runner = load_runner(directory, EngineOptions(device="cpu", experts="0.4", mode="hybrid"))
    assert isinstance(runner, Runner)
    request = Request(runner)
    tokens = made.script.walk[start : start + prompt].tolist()
    for _ in range(new):
        logits = request.feed(tokens if request.length == 0 else tokens[-1:])
        tokens.append(int(logits.argmax()))
    request.close()
    assert tokens == made.script.walk[start : start + prompt + new].tolist()
    steps = [torch.stack(routed[at : at + shape.layers], 1) for at in range(0, len(routed), shape.layers)]
    ours = torch.cat(steps).sort(-1).values.numpy()
    theirs = np.sort(run(reference, tokens[:-1], shape.per_token).chosen, -1)
    assert np.array_equal(ours, theirs)


def test_noise_has_the_planned_size_and_is_not_known_one_layer_early(
    family: Family, reference: Any, made: Made
) -> None:
    """What the router sees beyond the token's own vector, in units of the known part of its logits."""
    shape = TINY[family]
    found = run(reference, made.script.walk[:500].tolist(), shape.per_token)
    routers = [layer.mlp.gate.weight.detach().numpy() for layer in reference.model.layers]
    spaces = divide(shape)
    table = reference.model.embed_tokens.weight.detach().numpy()[made.script.walk[:500]]
    known_columns = [*range(spaces.route), spaces.constant_at]
    dials = Dials(noise=NOISE[family])
    for layer in range(1, shape.layers):
        known = table[:, known_columns] @ routers[layer][:, known_columns].T
        logits = found.logits[:, layer]
        scale = (known * logits).sum() / (known * known).sum()  # 1 / rms, about the same for all tokens
        noise = (logits / scale - known).std()
        ratio = noise / known.std()
        planned = dials.noise / np.hypot(dials.known, dials.popularity)
        assert planned * 0.6 < ratio < planned * 1.6, (layer, ratio, planned)
    recall = overlap(found.chosen[:, 1:], found.guessed)
    assert 0.6 < recall < 0.98


def test_text_of_the_walk_is_cut_into_its_ids(directory: Path, made: Made) -> None:
    words = words_of(directory, TINY["qwen3_moe"].vocab)
    ids = made.script.walk[:200].tolist()
    assert Tokenizer.from_directory(directory).encode("".join(words[number] for number in ids)) == ids


def test_names_and_shapes_are_those_of_the_family(family: Family, directory: Path, made: Made) -> None:
    shape = TINY[family]
    config = model_config(directory)
    assert (config.family, config.experts, len(config.layers)) == (family, shape.experts, shape.layers)
    index = json.loads((directory / "model.safetensors.index.json").read_bytes())
    stored = {
        name: tensor
        for file in set(index["weight_map"].values())
        for name, tensor in load_file(directory / file).items()
    }
    assert set(stored) == set(index["weight_map"])
    assert (
        index["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in stored.values()) == made.bytes
    )
    stem = f"{shape.prefix}layers.1.mlp.experts."
    one = [name for name in stored if name.startswith(stem)]
    if family == "qwen3_moe":
        assert len(one) == 3 * shape.experts
        assert stored[stem + "3.down_proj.weight"].shape == (shape.hidden, shape.inner)
    else:
        assert sorted(one) == [stem + "down_proj", stem + "gate_up_proj"]
        assert stored[stem + "gate_up_proj"].shape == (shape.experts, 2 * shape.inner, shape.hidden)
    for name, tensor in stored.items():
        if name.endswith("_proj.weight") or ".experts." in name:
            assert (tensor == 0).float().mean() < 0.001, name


def test_the_same_seed_gives_the_same_files(
    family: Family, directory: Path, made: Made, tmp_path: Path
) -> None:
    for seed, same in ((5, True), (6, False)):
        make_checkpoint(tmp_path, TINY[family], None, seed=seed, device="cpu", threads=3)
        name = f"model-00003-of-{TINY[family].layers + 1:05d}.safetensors"
        assert ((tmp_path / name).read_bytes() == (directory / name).read_bytes()) is same


def test_a_shape_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no room for 60 layers"):
        make_checkpoint(tmp_path, replace(TINY["qwen3_moe"], layers=60), None, seed=1, device="cpu")


def test_a_vocabulary_without_room_for_the_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end token is \d+, the model has 1000 ids"):
        make_checkpoint(tmp_path, replace(TINY["qwen3_moe"], vocab=1000), None, seed=1, device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_routing_of_the_real_shapes_has_the_published_statistics(family: Family) -> None:
    """Routers on the script's own vectors, without a model: what the checkpoints are built to reproduce."""
    shape, tokens, layers = SHAPES[family], 1200, 6
    dials, random = Dials(noise=NOISE[family]), np.random.default_rng(3)
    vectors = routing_vectors(tokens, 64, dials, seed=1) * dials.known
    chosen, guessed = [], []
    for _ in range(layers):
        known = vectors @ random.standard_normal((64, shape.experts)) / 8
        known += dials.popularity * random.standard_normal(shape.experts)
        noise = random.standard_normal((tokens, 16)) @ random.standard_normal((16, shape.experts)) / 4
        chosen.append(_best(known + dials.noise * noise, shape.per_token))
        guessed.append(_best(known, shape.per_token))
    figures = measure(np.stack(chosen, 1), np.stack(guessed[1:], 1), shape.experts)
    overlap_, recall = (0.354, 0.807) if family == "qwen3_5_moe" else (0.433, 0.886)
    assert figures["previous-token overlap"] == pytest.approx(overlap_, abs=0.04)
    assert figures["next-layer recall"] == pytest.approx(recall, abs=0.03)
    assert figures["LRU hit at 25.0%"] == pytest.approx(0.81, abs=0.06)


def _best(logits: np.ndarray[Any, Any], count: int) -> Routing:
    best: Routing = np.argsort(-logits, axis=-1)[:, :count]
    return best


def test_the_walk_is_one_circle_over_all_words() -> None:
    script = write_script(range(10, 300), 400, 24, Dials(), seed=2)
    seen, here = set(), int(script.walk[0])
    while here not in seen:
        seen.add(here)
        here = int(script.successor[here])
    assert here == int(script.walk[0])
    assert seen == set(range(10, 300))


def test_statistics_against_brute_force() -> None:
    random = np.random.default_rng()
    chosen = np.array([[random.permutation(9)[:3] for _ in range(4)] for _ in range(40)])
    shared = [
        len(set(a) & set(b))
        for one, two in zip(chosen[1:], chosen[:-1], strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    assert overlap(chosen[1:], chosen[:-1]) == pytest.approx(np.mean(shared) / 3)
    keys = [
        (layer, expert) for layers in chosen.tolist() for layer, row in enumerate(layers) for expert in row
    ]
    counts = sorted((keys.count(key) for key in set(keys)), reverse=True)
    assert top_share(chosen, 9, 0.25) == pytest.approx(sum(counts[:9]) / len(keys))
    recent: OrderedDict[object, None] = OrderedDict()
    hits = 0
    for place, key in enumerate(keys):
        hits += place >= 10 * 12 and key in list(recent)[-17:]
        recent.pop(key, None)
        recent[key] = None
    assert lru_hit(chosen, 17) == pytest.approx(hits / (30 * 12))

"""Runs a checkpoint in transformers and records text and routing: the reference that engines are held to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.walk.shapes import Shape
from benchmarks.walk.statistics import Routing

CHECKED = 256  # places whose next id is computed: the output projection of a real vocabulary is large


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a text: the router's choice, its logits [tokens, layers, experts], what each layer but
    the first would choose on the router input of the layer before, and the likeliest next id at some places.
    """

    chosen: Routing
    logits: NDArray[np.float32]
    guessed: Routing
    places: NDArray[np.int64]
    following: NDArray[np.int64]


def load(directory: Path, shape: Shape, layers: int, dtype: torch.dtype, device: torch.device) -> Any:
    """The first `layers` layers in transformers' own implementation."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    name = "Qwen3_5MoeForCausalLM" if shape.linear else "Qwen3MoeForCausalLM"
    config = transformers.AutoConfig.from_pretrained(directory)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    implementation = {"attn_implementation": "sdpa", "experts_implementation": "eager"}
    model = getattr(transformers, name).from_pretrained(
        directory, config=config, dtype=dtype, **implementation
    )
    return model.to(device).eval()


def run(model: Any, tokens: Sequence[int], per_token: int) -> Pass:
    """One pass without a cache."""
    inputs: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    gates = [layer.mlp.gate for layer in model.model.layers]
    device = model.lm_head.weight.device
    with torch.inference_mode():
        with _recorded(gates, inputs, logits):
            hidden = model.model(torch.tensor([list(tokens)], device=device), use_cache=False)[0][0]
        guesses = [gate(x)[0] for gate, x in zip(gates[1:], inputs[:-1], strict=True)]
        places = np.unique(np.linspace(0, len(tokens) - 1, CHECKED, dtype=np.int64))
        following = model.lm_head(hidden[torch.from_numpy(places).to(device)]).argmax(-1).cpu().numpy()
    chosen = torch.stack([row.topk(per_token, -1).indices for row in logits], 1)
    guessed = (
        torch.stack([row.topk(per_token, -1).indices for row in guesses], 1) if guesses else chosen[:, :0]
    )
    by_layer = torch.stack(logits, 1).float().cpu().numpy()
    return Pass(chosen.cpu().numpy(), by_layer, guessed.cpu().numpy(), places, following)


@contextlib.contextmanager
def _recorded(gates: list[Any], inputs: list[torch.Tensor], logits: list[torch.Tensor]) -> Iterator[None]:
    def record(_: Any, given: tuple[torch.Tensor, ...], result: tuple[torch.Tensor, ...]) -> None:
        inputs.append(given[0].reshape(-1, given[0].shape[-1]))
        logits.append(result[0])

    hooks = [gate.register_forward_hook(record) for gate in gates]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

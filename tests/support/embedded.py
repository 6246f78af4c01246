"""The embedded model as its training wrote it, for oracles that read safetensors only.

Taken out of its FTW by the book, with no code of the product.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from ftagent import demo
from tests.support.ftw_by_the_book import Book

WEIGHTS = demo.directory() / "model-00001-of-00001.ftw"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}


def tensors() -> dict[str, torch.Tensor]:
    """All tensors under their Hugging Face names, in their stored types."""
    book, found = Book(demo.directory()), {}
    for name, item in book.tensors.items():
        if "bank" not in item:
            found[name] = _tensor(item["dtype"], item["shape"], book.content(name))
            continue
        layer = item["bank"]["layer"]
        for expert in range(item["shape"][0]):
            pieces = {name: _tensor(*piece) for name, piece in book.pieces(layer, expert).items()}
            stem = f"model.layers.{layer}.mlp.experts.{expert}"
            codes = (*pieces["gate_up"].chunk(2), pieces["down"])
            scales = (*pieces["gate_up_scales"].unbind(0), pieces["down_scales"])
            for part, code, scale in zip(("gate", "up", "down"), codes, scales, strict=True):
                found[f"{stem}.{part}_proj.weight"] = code.contiguous()
                found[f"{stem}.{part}_proj.weight_scale_inv"] = scale.contiguous()
    return found


def as_safetensors(directory: Path) -> Path:
    """Write the embedded model into a new `directory` as a checkpoint of safetensors."""
    directory.mkdir()
    for file in demo.directory().iterdir():
        if file != WEIGHTS:
            shutil.copy(file, directory)
    save_file(tensors(), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _tensor(dtype: str, shape: tuple[int, ...], content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(bytearray(content), dtype=DTYPES[dtype]).view(tuple(shape))

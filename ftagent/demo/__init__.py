"""The small mixture-of-experts model that ships with the package, and the scripts that trained it.

Knows no engine: it is a checkpoint directory like any other, with the layout of `qwen3_5_moe`.
"""

from __future__ import annotations

from pathlib import Path


def directory() -> Path:
    """The embedded checkpoint: config, tokenizer, chat template and FP8 weights."""
    return Path(__file__).parent / "model"


def directory_of(model: str) -> Path:
    """The checkpoint that a user calls `model`: the embedded one is `demo`, all else is a path."""
    return directory() if model == "demo" else Path(model).expanduser()

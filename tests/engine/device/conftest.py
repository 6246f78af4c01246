"""The interpreter takes seconds to find the best logits of a row, so its twins of a step do it in torch."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.device import decode, runner


def best_by_torch(logits: torch.Tensor, values: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
    """As kernels.gpu.sample.candidates for rows without NaN."""
    live = int(rows)
    found = logits[:live].topk(values.shape[1])
    values[:live], ids[:live] = found.values, found.indices.int()


@pytest.fixture(autouse=True)
def quick(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    if device.type == "cpu":
        monkeypatch.setattr(decode, "candidates", best_by_torch)
        monkeypatch.setattr(runner, "candidates", best_by_torch)

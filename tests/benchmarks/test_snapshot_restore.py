"""The benchmark of restores runs without a device too, where its rates mean nothing."""

from __future__ import annotations

import torch

from benchmarks.snapshot_restore import measure


def test_states_and_pages_are_restored_and_counted() -> None:
    found = measure(torch.device("cpu"), layers=8, tokens=100, runs=1)
    conv, recurrent = 3 * 8192, 32 * 128 * 128
    assert found["state"]["bytes"] == 4 * 6 * (conv + recurrent)
    assert found["pages"]["bytes"] == 2 * 64 * 2 * 4 * 256 * 2
    for what in ("state", "pages"):
        assert found[what]["share"] == found[what]["restored"] / found[what]["link"] > 0

"""Computes experts where they lie: straight from a host bank, without a slot.

The CPU side of a hybrid step, and the whole of mode `cpu`. Uses the same kernels on the same values as the
slots do, so an expert gives the same bits from either place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.experts.slots import ExpertWeights


class CpuExecutor:
    """Gives ready weights of any expert. A stored format that is not the compute dtype goes through one
    scratch row.
    """

    def __init__(self, banks: Sequence[ExpertBank], dtype: torch.dtype) -> None:
        self._banks = banks
        hidden, inner = banks[0].shape
        self._dtype = dtype
        self._scratch = ExpertWeights(
            torch.empty(2 * inner, hidden, dtype=dtype), torch.empty(hidden, inner, dtype=dtype)
        )

    def weights(self, layer: int, expert: int) -> ExpertWeights:
        """Valid until the next call."""
        bank = self._banks[layer]
        if bank.format.dtype == self._dtype:
            row = bank.row(expert)
            return ExpertWeights(row.gate_up, row.down)
        bank.decode(expert, *self._scratch)
        return self._scratch

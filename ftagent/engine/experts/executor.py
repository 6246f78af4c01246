"""Computes experts where they lie: straight from a host bank, without a slot.

The CPU side of a hybrid step, and the whole of mode `cpu`. Uses the same kernels on the same values as the
slots do, so an expert gives the same bits from either place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftagent.engine.experts.bank import ExpertBank
from ftagent.engine.kernels.experts import ExpertWeights


class CpuExecutor:
    """Gives ready weights of any expert. A stored format that is not the compute dtype goes through one
    scratch row.
    """

    def __init__(self, banks: Sequence[ExpertBank], dtype: torch.dtype) -> None:
        self._banks = banks
        self._dtype = dtype
        shape = banks[0].shape
        self._scratch = shape.ready(torch.empty(shape.values(), dtype=dtype))

    def weights(self, layer: int, expert: int) -> ExpertWeights:
        """Valid until the next call."""
        bank = self._banks[layer]
        if bank.format.dtype == self._dtype:
            return bank.weights(expert)
        bank.decode(expert, self._scratch)
        return self._scratch

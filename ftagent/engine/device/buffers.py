"""Memory of a decode step that stays where it is, so that a captured graph can be replayed.

What the host tells a step is one block of int32 that crosses the link in one copy. Knows no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ftagent.engine.chunk import Chunk
from ftagent.engine.logits import BEST


class StepInputs:
    """The block of int32 [2 + B * (3 + pages)]: live rows, epoch, tokens, positions, state slots, pages."""

    def __init__(self, batch: int, pages: int, device: torch.device) -> None:
        size = 2 + batch * (3 + pages)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._numbers = self._host.numpy()
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._pages = pages
        self._known: list[Sequence[int]] = [()] * batch  # the pages written into each row of the table
        ends = [1, 2, *(2 + batch * part for part in (1, 2, 3)), size]
        begins = [0, *ends[:-1]]
        views = [self._device[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self.rows, self.epoch, self.tokens, self.positions, self.slots = views[:5]
        self.page_table = views[5].view(batch, pages)
        self._begins = begins

    def write(self, chunks: Sequence[Chunk], epoch: int) -> None:
        """Note the rows of the next step; `upload` brings them over."""
        numbers = self._numbers
        numbers[0], numbers[1] = len(chunks), epoch
        for row, chunk in enumerate(chunks):
            numbers[self._begins[2] + row] = chunk.tokens[0]
            numbers[self._begins[3] + row] = chunk.start
            numbers[self._begins[4] + row] = chunk.slot
            if self._known[row] != chunk.pages:
                self._known[row] = tuple(chunk.pages)
                begin = self._begins[5] + row * self._pages
                numbers[begin : begin + len(chunk.pages)] = np.asarray(chunk.pages, np.int32)

    def upload(self) -> None:
        """Part of the graph."""
        self._device.copy_(self._host, non_blocking=True)


class StepOutputs:
    """Best logits and the failure word of a step, brought to the host in the graph."""

    def __init__(self, logits: torch.Tensor, fail: torch.Tensor) -> None:
        batch, device = len(logits), logits.device
        pinned = device.type == "cuda"
        self.logits = logits
        # One block, so that one copy brings both.
        self._best = torch.zeros(2, batch, BEST, dtype=torch.int32, device=device)
        self.values, self.ids = self._best[0].view(torch.float32), self._best[1]
        self._fail = fail
        self._host_best = torch.zeros(2, batch, BEST, dtype=torch.int32, pin_memory=pinned)
        self._values, self._ids = self._host_best[0].view(torch.float32).numpy(), self._host_best[1].numpy()
        self._host_fail = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)

    def download(self) -> None:
        """Part of the graph."""
        self._host_best.copy_(self._best, non_blocking=True)
        self._host_fail.copy_(self._fail, non_blocking=True)

    @property
    def failed(self) -> bool:
        """Whether a kernel gave up waiting. Valid once the step is over."""
        return bool(self._host_fail.item())

    def clear_failure(self) -> None:
        self._fail.zero_()

    def best(
        self, row: int
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Ids and values of a row, best first. Valid until the next step."""
        return self._ids[row], self._values[row]


class Scratch:
    """Arrays between the kernels of a step. `flat` gives [B, width] views of one block, float32."""

    def __init__(
        self, batch: int, hidden: int, dtype: torch.dtype, widest: int, device: torch.device
    ) -> None:
        self.batch = batch
        self.x = torch.zeros(batch, hidden, dtype=torch.float32, device=device)
        self.normed = torch.zeros(batch, hidden, dtype=dtype, device=device)
        self._flat = torch.zeros(batch * widest, dtype=torch.float32, device=device)
        self._channels = torch.zeros(batch * widest, dtype=torch.float32, device=device)
        self._mixed = torch.zeros(batch * widest, dtype=dtype, device=device)

    def flat(self, width: int) -> torch.Tensor:
        return self._flat[: self.batch * width].view(self.batch, width)

    def channels(self, width: int) -> torch.Tensor:
        """float32 [B, width]: between two kernels of a mixer."""
        return self._channels[: self.batch * width].view(self.batch, width)

    def mixed(self, width: int) -> torch.Tensor:
        """T [B, width]: what a mixer or an MLP hands to its output projection."""
        return self._mixed[: self.batch * width].view(self.batch, width)

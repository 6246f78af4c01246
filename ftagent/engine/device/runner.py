"""One step on a GPU: decode rows through the captured chain, prompts through the model's own layers.

Has the face of `engine.runner.Runner`. Not thread-safe: one thread calls it. Knows no requests or sampling.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from ftagent.engine.api import ModelInfo
from ftagent.engine.chunk import Chunk
from ftagent.engine.context.pages import PagePool
from ftagent.engine.device.buffers import StepOutputs
from ftagent.engine.device.contents import DeviceContents
from ftagent.engine.device.decode import DecodeStep
from ftagent.engine.device.experts import DeviceExperts
from ftagent.engine.kernels.gpu.sample import candidates
from ftagent.engine.logits import BEST, Best, Row
from ftagent.engine.models.decoder import Decoder
from ftagent.errors import EngineError


class DeviceRunner:
    """A loaded model on one device with its pools. `steps` are decode chains by rising batch size."""

    def __init__(
        self,
        model: Decoder,
        pools: tuple[PagePool, DeviceContents],
        experts: DeviceExperts | None,
        steps: Sequence[DecodeStep],
        info: ModelInfo,
        chunk_tokens: int,
    ) -> None:
        self._model = model
        self.kv, self.contents = pools
        self.recurrent, self.kept = self.contents.states, self.contents.kept
        self.experts = experts
        self._steps = steps
        self.info = info
        self.chunk_tokens = chunk_tokens
        self._epoch = 0

    def prepare(self) -> None:
        """Compile the kernels and capture the decode chains."""
        for step in self._steps:
            step.prepare()
        if self.experts is not None:
            self.experts.prefill.warm_up()

    def launch(self, chunks: Sequence[Chunk]) -> DeviceStep:
        """Hand the first decode chain to the device; further chains and prompts follow in `wait`."""
        decode = [index for index, chunk in enumerate(chunks) if len(chunk.tokens) == 1]
        if not self._steps:  # nobody serves misses (see DeviceExperts.chained): they take the way of prompts
            decode = []
        most = self._steps[-1].batch if self._steps else 1
        if self.experts is not None:
            most = min(most, self.experts.most_rows or most)
        parts = [decode[first : first + most] for first in range(0, len(decode), most)]
        step = DeviceStep(self, chunks, parts)
        step.begin()
        return step

    def step(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """float32 [chunks with want_logits, vocab], as `Runner.step` gives it."""
        logits = self.launch(chunks).wait()
        rows = [torch.from_numpy(logits.row(index)) for index in range(len(logits))]
        return torch.stack(rows) if rows else torch.empty(0, self.info.vocab)

    def copy_page(self, source: int, target: int) -> None:
        """See `Runner.copy_page`."""
        self._model.copy_page(source, target)

    def close(self) -> None:
        """Give back what Python does not: threads, registered memory."""
        try:
            if self.experts is not None:
                self.experts.close()
        finally:
            self.contents.close()

    def decode(self, chunks: Sequence[Chunk]) -> StepOutputs:
        """Start one decode chain."""
        chain = next(step for step in self._steps if step.batch >= len(chunks))
        self._epoch += 1
        chain.inputs.write(chunks, self._epoch)
        if self.experts is not None:
            self.experts.begin_decode(self._epoch, len(chunks))
        chain.launch()
        return chain.outputs

    def finish_decode(self, outputs: StepOutputs, rows: int, started: int) -> None:
        """Wait for a chain that was begun at `started`. Raises EngineError when it is void."""
        if self.experts is not None:
            self.experts.await_decode()  # sleeps until the last layer is served; the rest is short
        self.wait_for_device()
        reason = None
        if self.experts is not None:
            reason = self.experts.end_decode(rows, time.perf_counter_ns() - started)
        if outputs.failed:
            outputs.clear_failure()
            reason = reason or "a kernel waited in vain for the host"
        if reason is not None:
            raise EngineError(reason)

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits float32 [chunks with want_logits, vocab] on the device."""
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        self.recurrent.open(chunks)
        if self.experts is None:
            return self._model.forward(chunks)
        with self.experts.prefill_pass(tokens):
            return self._model.forward(chunks)

    def wait_for_device(self) -> None:
        if self.info.device != "cpu":
            torch.cuda.current_stream().synchronize()


class DeviceStep:
    """A step on its way. `wait` gives the logits, in the order of the chunks that want them."""

    def __init__(self, runner: DeviceRunner, chunks: Sequence[Chunk], parts: list[list[int]]) -> None:
        self._runner = runner
        self._chunks = chunks
        self._parts = parts  # indices of decode chunks, one list for each chain
        self._running: StepOutputs | None = None
        self._started = 0
        self._rows: dict[int, tuple[torch.Tensor, Best | None]] = {}

    def begin(self) -> None:
        if self._parts:
            self._start(self._parts[0])

    def _start(self, part: list[int]) -> None:
        self._started = time.perf_counter_ns()
        self._running = self._runner.decode([self._chunks[index] for index in part])

    def wait(self) -> DeviceLogits:
        """Raises EngineError when the device or a CPU worker failed."""
        for place, part in enumerate(self._parts):
            if place:
                self._start(part)
            self._finish(part, keep=len(self._parts) > 1)
        chained = {index for part in self._parts for index in part}
        prompts = [index for index in range(len(self._chunks)) if index not in chained]
        if prompts:
            self._prefill(prompts)
        wanted = [index for index, chunk in enumerate(self._chunks) if chunk.want_logits]
        return DeviceLogits([self._rows[index] for index in wanted])

    def _finish(self, part: list[int], keep: bool) -> None:
        outputs = self._running
        assert outputs is not None
        self._runner.finish_decode(outputs, len(part), self._started)
        for row, index in enumerate(part):
            if self._chunks[index].want_logits:
                ids, values = outputs.best(row)
                logits = outputs.logits[row]
                self._rows[index] = (logits.clone() if keep else logits, _best(ids, values))

    def _prefill(self, prompts: list[int]) -> None:
        logits = self._runner.prefill([self._chunks[index] for index in prompts])
        wanted = [index for index in prompts if self._chunks[index].want_logits]
        if not wanted:
            return
        logits = logits.contiguous()
        values = torch.empty(len(wanted), BEST, device=logits.device)
        ids = torch.empty(len(wanted), BEST, dtype=torch.int32, device=logits.device)
        rows = torch.tensor([len(wanted)], dtype=torch.int32, device=logits.device)
        candidates(logits, values, ids, rows)
        found_ids, found = ids.cpu().numpy(), values.cpu().numpy()
        for row, index in enumerate(wanted):
            self._rows[index] = (logits[row], _best(found_ids[row], found[row]))


class DeviceLogits:
    """Rows that stay on the device until somebody asks for a whole one. Valid until the next step."""

    def __init__(self, rows: Sequence[tuple[torch.Tensor, Best | None]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        found: Row = self._rows[index][0].cpu().clone().numpy()
        return found

    def best(self, index: int) -> Best | None:
        return self._rows[index][1]


def _best(ids: np.ndarray[tuple[int], np.dtype[np.int32]], values: Row) -> Best:
    order = np.argsort(ids)
    order = order[np.searchsorted(ids[order], 0) :]  # a small vocabulary leaves places empty: id -1
    return Best(ids[order].astype(np.intp), values[order])

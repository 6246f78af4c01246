"""How fast the copy engine brings experts from host memory to one GPU, waited for or under other work, and
how fast the GPU reads its own memory.

Times whole batches from the call to the end that the host sees. Imports torch; knows no model.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ftagent.engine.machine.record_pool import RecordPool, expert_bytes
from ftagent.errors import EngineError

IN_FLIGHT = 4  # batches that a busy link has queued: enough that it never waits for the host
BATCH = 4  # experts of such a batch
READ_BYTES = 8 * 2**30  # of one measurement of the device's memory: what it costs to start vanishes in it
_PORTABLE = 1  # cudaHostRegisterPortable


class LinkBench:
    """Copies from `pool`, which it registers with the driver, to cuda:`index`.

    Raises EngineError when the memory cannot be registered or the device has no room.
    """

    def __init__(self, pool: RecordPool, index: int) -> None:
        import torch

        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self._size = expert_bytes(pool.sizes)
        self._experts = pool.experts
        self._next = 0
        self._at = pool.rows.ctypes.data
        with torch.cuda.device(index):
            code = int(self._cuda.cudart().cudaHostRegister(self._at, pool.nbytes, _PORTABLE))
        if code:
            raise EngineError(f"the driver refuses to pin {pool.nbytes} bytes of host memory (error {code})")
        try:
            device = torch.device("cuda", index)
            self._whole = torch.from_numpy(pool.rows.reshape(-1))
            self._rows = torch.from_numpy(pool.rows)[:, : self._size]
            self._target = torch.empty_like(self._whole, device=device)
            self._slots = self._target.view(self._experts, -1)[:, : self._size]
            self._stream = self._cuda.Stream(device)
        except torch.OutOfMemoryError as error:
            self._unregister()
            raise EngineError(f"cuda:{index} has no room for {pool.nbytes} bytes") from error

    def linear(self) -> float:
        """Seconds of one copy of the whole pool."""
        began = time.perf_counter()
        with self._cuda.stream(self._stream):
            self._target.copy_(self._whole, non_blocking=True)
        self._stream.synchronize()
        return time.perf_counter() - began

    def device_read(self) -> float:
        """Seconds in which the device reads as many bytes as the pool has in its own memory."""
        words, times = self._target.view(self._torch.int64), max(READ_BYTES // len(self._target), 1)
        began = time.perf_counter()
        with self._cuda.stream(self._stream):
            for _ in range(times):
                words.sum()
        self._stream.synchronize()
        return (time.perf_counter() - began) / times

    def experts(self, count: int) -> float:
        """Seconds for `count` experts, queued one behind the other and waited for together."""
        places = self._places(count)
        began = time.perf_counter()
        self._queue(places)
        self._stream.synchronize()
        return time.perf_counter() - began

    def busy(self) -> BusyLink:
        """Keeps the link busy with experts until it is stopped, on a thread of its own."""
        return BusyLink(self)

    def batch(self) -> Any:
        """Queue BATCH experts; the event behind them."""
        self._queue(self._places(BATCH))
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    @property
    def batch_bytes(self) -> int:
        return BATCH * self._size

    def close(self) -> None:
        self._stream.synchronize()
        self._unregister()

    def _unregister(self) -> None:
        self._cuda.cudart().cudaHostUnregister(self._at)

    def _places(self, count: int) -> list[int]:
        """Rows all over the pool: a stride that shares no factor with a pool of a multiple of 8 experts."""
        stride = 5 if self._experts % 5 else 3
        places = [(self._next + step) * stride % self._experts for step in range(count)]
        self._next += count
        return places

    def _queue(self, places: list[int]) -> None:
        with self._cuda.stream(self._stream):
            for place in places:
                self._slots[place].copy_(self._rows[place], non_blocking=True)


class BusyLink:
    """A link under load, as a context; `rate` afterwards: bytes/s between the first and the last batch."""

    def __init__(self, link: LinkBench) -> None:
        self._link = link
        self._stop = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="busy-link", daemon=True)
        self._error: BaseException | None = None
        self.rate = 0.0

    def __enter__(self) -> BusyLink:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise EngineError(f"copies to the device failed: {self._error}") from self._error

    def _run(self) -> None:
        try:
            self._copy()
        # Whatever goes wrong on this thread is raised again where the context ends.
        except Exception as error:  # noqa: BLE001
            self._error = error
        finally:
            self._started.set()

    def _copy(self) -> None:
        waiting = [self._link.batch() for _ in range(IN_FLIGHT)]
        waiting.pop(0).synchronize()
        began = time.perf_counter()
        self._started.set()
        done = 0
        while not self._stop.is_set():
            waiting.append(self._link.batch())
            waiting.pop(0).synchronize()
            done += 1
        took = time.perf_counter() - began
        for event in waiting:
            event.synchronize()
        self.rate = done * self._link.batch_bytes / took if done else 0.0

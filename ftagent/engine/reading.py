"""Reads the weights of a checked model: experts by threads, dense tensors meanwhile, and how far both are.

Knows what is read from where; what is built of it is the loader's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import torch

from ftagent.engine.api import LoadProgress, LoadState
from ftagent.engine.experts.bank import ExpertBank, ExpertFormat, row_bytes
from ftagent.engine.experts.filling import BankFiller
from ftagent.engine.experts.pinning import Registrar
from ftagent.engine.experts.readers import Reading, choose_readers
from ftagent.engine.experts.stored import StoredRows
from ftagent.engine.weights.source import Reader
from ftagent.errors import LoadFailed

if TYPE_CHECKING:
    from ftagent.engine.load import Opened

WIDENED_BYTES = 10  # of a weight that is widened: its value and its scale in float32, and the result

log = logging.getLogger(__name__)


class LoadMeter:
    """Bytes of dense tensors and of experts that are in memory, as one state. Safe from several threads."""

    def __init__(self, progress: LoadProgress | None = None) -> None:
        self._total = self._dense = self._experts = 0
        self._how = ""
        self._progress = progress
        self._lock = threading.Lock()

    def expect(self, total: int) -> None:
        """`total` bytes will be read."""
        with self._lock:
            self._total = total
            self._tell()

    def say(self, how: str) -> None:
        """How the experts are read."""
        with self._lock:
            self._how = how

    def add_dense(self, size: int) -> None:
        """One more tensor of `size` bytes is there."""
        with self._lock:
            self._dense += size
            self._tell()

    def set_experts(self, done: int, total: int) -> None:
        """As BankFiller's callback."""
        with self._lock:
            self._experts = done
            self._tell()

    def _tell(self) -> None:
        done = min(self._dense + self._experts, self._total)
        self.tell(LoadState("reading", done, self._total, self._how))

    def tell(self, state: LoadState) -> None:
        """Pass a state on."""
        if self._progress is not None:
            self._progress(state)


def reader_of(opened: Opened) -> Reader:
    """What brings the dense tensors to the device."""
    meter = opened.meter
    return Reader(opened.checkpoint, opened.prefix, opened.dtype, opened.device, meter.add_dense)


@contextmanager
def filled_banks(
    opened: Opened, formats: tuple[ExpertFormat, ...], registrar: Registrar | None = None
) -> Iterator[list[ExpertBank]]:
    """Banks of all MoE layers, being filled (and registered) while the body runs, and full when it is left.
    On any error all of them are closed.

    Raises LoadFailed when memory cannot be mapped or a file cannot be read.
    """
    banks: list[ExpertBank] = []
    threads = _threads(opened, formats)
    try:
        try:
            banks.extend(ExpertBank(opened.config.experts, opened.shape, stored) for stored in formats)
        except OSError as error:
            raise LoadFailed(f"{opened.directory}: no memory for the experts ({error.strerror})") from error
        layers = list(zip(opened.names, banks, strict=True))
        with BankFiller(opened.checkpoint, layers, threads, registrar, opened.meter.set_experts) as filler:
            yield banks
            filler.wait()
    except BaseException:  # an interrupt too must not leave registered memory behind
        for bank in banks:
            bank.close()
        raise


def _threads(opened: Opened, formats: tuple[ExpertFormat, ...]) -> int:
    if not formats:
        return 1
    cores = opened.options.threads or torch.get_num_threads()
    what = Reading(
        "FTW" if opened.checkpoint.banks else "safetensors",
        sum(opened.config.experts * row_bytes(opened.shape, wanted) for wanted in formats),
        max(_buffer(opened, number, wanted) for number, wanted in enumerate(formats)),
    )
    found = choose_readers(what, cores, psutil.virtual_memory().available, opened.options.readers)
    log.info("%s: %s", opened.directory, found.how)
    opened.meter.say(found.how)
    return found.threads


def _buffer(opened: Opened, number: int, wanted: ExpertFormat) -> int:
    """What a reader of a layer holds of it beside its bank."""
    source, stored = opened.names[number], opened.formats[number]
    widened = WIDENED_BYTES * opened.shape.weights() if stored != wanted and stored.quantised else 0
    if isinstance(source, StoredRows):
        return 0 if stored == wanted else source.tensor.chunk + widened
    return row_bytes(opened.shape, stored) + widened

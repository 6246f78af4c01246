"""What commands share: flags that are settings, narration, JSON lines, the start of the engine.

Imports no torch until an engine is opened.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ftagent import paths
from ftagent.commands.progress import GIB, ProgressLine
from ftagent.engine.options import EngineOptions
from ftagent.errors import FtError
from ftagent.hub.store import model_path
from ftagent.settings import Loaded, Settings, load

if TYPE_CHECKING:
    from ftagent.engine.api import LoadProgress, LoadState
    from ftagent.engine.engine import LocalEngine

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ENGINE_FLAGS = {
    "model": "DIR|REPO|demo",
    "device": "auto|cpu|cuda[:N]",
    "context": "TOKENS",
    "experts": "N|SIZE|FRACTION",
    "mode": "auto|fused|offload|cpu|hybrid",
    "vram": "SIZE",
    "ram": "SIZE",
    "anchors": "N|SIZE",
    "verify_anchors": "[SHARE]",
    "threads": "N",
    "seed": "N",
}


def setting_flags(flags: Mapping[str, str]) -> Callable[[Decorated], Decorated]:
    """A decorator that adds a flag per setting (key to metavar). The settings' own words are the help. A
    metavar in brackets may be left out, which says 1.
    """

    def decorate(function: Decorated) -> Decorated:
        for key, metavar in reversed(list(flags.items())):
            words = Settings.model_fields[key].description
            alone: dict[str, Any] = {"is_flag": False, "flag_value": "1"} if metavar.startswith("[") else {}
            option = click.option("--" + key.replace("_", "-"), key, metavar=metavar, help=words, **alone)
            function = option(function)
        return function

    return decorate


def json_flag(function: Decorated) -> Decorated:
    """Add `--json`, which arrives as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")(function)


def load_settings(flags: Mapping[str, Any]) -> Loaded:
    """The settings in force: file, environment, and the flags of this command line."""
    return load(paths.config_file(), os.environ, flags)


def emit(record: Mapping[str, Any]) -> None:
    """One JSON line on stdout, flushed, so that a reader sees it at once."""
    click.echo(json.dumps(record, ensure_ascii=False))


def narrate(message: str) -> None:
    """One line for people, on stderr."""
    click.echo(message, err=True)


@contextlib.contextmanager
def errors_as_events(as_json: bool) -> Iterator[None]:
    """With `--json`, say an error on stdout too, where a reader of events waits for one."""
    try:
        yield
    except FtError as error:
        if as_json:
            emit({"type": "error", "message": str(error), "exit_code": error.exit_code})
        raise


def log_to_stderr() -> None:
    """Show warnings of the package as plain lines."""
    form = "%(levelname)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=form, force=True)


def log_to_file() -> Path:
    """Send narration to a file, while a screen or an agent owns the terminal."""
    file = paths.log_file()
    paths.private_dir(file.parent)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=file, level=logging.INFO, format=form, force=True)
    return file


def engine_options(settings: Settings) -> EngineOptions:
    """The part of the settings that the engine takes. Raises LoadFailed for a repository that is not here."""
    return EngineOptions(
        model=model_path(settings.model),
        device=settings.device,
        context=settings.context,
        experts=settings.experts,
        mode=settings.mode,
        seed=settings.seed,
        threads=settings.threads,
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        chunk_tokens=settings.chunk_tokens,
        vram=None if settings.vram is None else str(settings.vram),
        ram=None if settings.ram is None else str(settings.ram),
        constrain_tools=settings.constrain_tools,
        keep_prefixes=True,
        anchors=settings.anchors,
        verify_anchors=settings.verify_anchors,
        verify_weights=settings.verify_weights,
        readers=settings.readers,
    )


@contextlib.contextmanager
def open_engine(
    settings: Settings, reference: bool = False, progress: LoadProgress | None = None, **changes: Any
) -> Iterator[LocalEngine]:
    """Load the model, saying so on stderr, and to `progress` how far it is; close the engine on the way out.
    `reference` and `changes`: see EngineOptions.

    Raises LoadFailed or ConfigError.
    """
    options = replace(engine_options(settings), reference=reference, **changes)
    began = time.monotonic()
    narrate(f"loading {options.model} ...")
    from ftagent.engine.engine import start_engine

    line = ProgressLine()

    said: list[str] = []

    def tell(state: LoadState) -> None:
        if state.how and not said and state.total >= GIB:
            said.append(state.how)
            narrate(state.how)
        if state.total:
            line.update(state.phase, state.done, state.total)
        if progress is not None:
            progress(state)

    try:
        engine = start_engine(options, tell)
    finally:
        line.close()
    try:
        model = engine.model
        small = ", the small embedded model" if model.embedded else ""
        narrate(
            f"loaded {model.id}{small}: {model.context} tokens of context, on {model.device}, "
            f"in {time.monotonic() - began:.1f} s"
        )
        yield engine
    finally:
        engine.close()


class StopSignal:
    """SIGINT and SIGTERM, caught from the moment this is made. Only in the main thread.

    A second signal, during the shutdown that the first one starts, ends the process with 128 + its number.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def wait(self, alive: Callable[[], bool]) -> bool:
        """Wait for a signal and return True; return False as soon as `alive` says no."""
        while not self._stop.wait(1.0):
            if not alive():
                return False
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            os._exit(128 + number)
        self._stop.set()

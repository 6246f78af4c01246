"""Builds and loads the native library: all C++ files of `native/` in one shared object, a plain C interface.

Compiled on first use (a few seconds) and kept in the user's cache under a name with the hash of sources,
flags, compiler and architecture. Nothing is compiled for the processor at hand: each kernel file has the
flags of its instruction set and the library picks one at run time, so a shared object built elsewhere serves
as well (`build_into`, for wheels). Knows nothing of what the sources compute.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from ftagent.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-pthread")
LINK = ("-shared", "-pthread", "-ldl")
# The end of a file's name gives the instruction set that it needs, on x86-64.
ISA_FLAGS = {
    "_avx2": ("-mavx2", "-mfma", "-mtune=haswell"),
    "_avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
    "_avx512bf16": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
        "-mprefer-vector-width=512",
    ),
}
COMPILE_TIMEOUT_S = 120
FALLBACK = "experts on the CPU are computed by torch instead, which is slower"
_TRAILER = b"ftagent\0"

State = Literal["prebuilt", "cached", "uncompiled", "missing"]


class BuildFailed(EngineError):
    """The library cannot be built or loaded; the message says what is missing."""


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, or None after one warning that names what is missing and what is used instead."""
    try:
        return _load()
    except BuildFailed as error:
        log.warning("no native library: %s; %s", error, FALLBACK)
        return None


def state() -> State:
    """How `load` would come by the library, without building or loading it."""
    if sys.platform != "linux":
        return "missing"
    if (SOURCES / prebuilt_name()).exists():
        return "prebuilt"
    compiler = find_compiler()
    if compiler is None:
        return "missing"
    from ftagent import paths

    return "cached" if (paths.cache_dir() / "native" / _cached_name(compiler)).exists() else "uncompiled"


def find_compiler() -> str | None:
    """Path of a C++ compiler: `CXX`, else the first of `COMPILERS` in PATH."""
    named = os.environ.get("CXX")
    return next((path for name in (named, *COMPILERS) if name and (path := shutil.which(name))), None)


def source_hash() -> str:
    """Of the names and bytes of all sources, the flags and the architecture."""
    digest = hashlib.sha256(repr((FLAGS, LINK, sorted(ISA_FLAGS.items()), platform.machine())).encode())
    for path in sorted((*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"))):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def prebuilt_name() -> str:
    return f"libftagent-{source_hash()}.so"


def build_into(directory: Path) -> Path:
    """Compile the library for a wheel, to lie beside the sources. Raises BuildFailed."""
    target = directory / prebuilt_name()
    _build(_need_compiler(), target)
    return target


def _load() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise BuildFailed(f"{platform.system()} is not supported by it")
    prebuilt = _open(SOURCES / prebuilt_name())
    if prebuilt is not None:
        return prebuilt
    from ftagent import paths  # its dependencies are not there when a wheel is built

    compiler = _need_compiler()
    try:
        directory = paths.private_dir(paths.cache_dir() / "native")
    except ConfigError as error:
        log.warning("%s; the native library is compiled again at every start", error)
        with tempfile.TemporaryDirectory(prefix="ftagent-") as temporary:
            return _cached(compiler, Path(temporary))
    return _cached(compiler, directory)


def _cached(compiler: str, directory: Path) -> ctypes.CDLL:
    target = directory / _cached_name(compiler)
    library = _open(target)
    if library is None:
        _build(compiler, target)
        library = _open(target)
    if library is None:
        raise BuildFailed(f"{target} cannot be loaded; remove it and start again")
    return library


def _cached_name(compiler: str) -> str:
    return f"libftagent-{source_hash()}-{_compiler_hash(compiler)}.so"


def _need_compiler() -> str:
    compiler = find_compiler()
    if compiler is None:
        raise BuildFailed(f"no C++ compiler in PATH (looked for {', '.join(COMPILERS)}); install g++")
    return compiler


def _compiler_hash(compiler: str) -> str:
    """A compiler is known by its file: asking for its version would start a process at every load."""
    real = Path(compiler).resolve()
    stat = real.stat()
    return hashlib.sha256(f"{real} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:8]


def _open(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None where there is none, or it is damaged (reported, and built again)."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    body, digest, mark = whole[:-40], whole[-40:-8], whole[-8:]
    if mark != _TRAILER or hashlib.sha256(body).digest() != digest:
        # Opening a file cut in the middle could kill the process with SIGBUS, so the loader never sees it.
        log.warning("%s is damaged and is built again", path)
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s cannot be loaded (%s) and is built again", path, error)
        return None


def _build(compiler: str, target: Path) -> None:
    """Compile all sources side by side, link, seal, rename into place. Of two builders the last wins."""
    sources = sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as temporary:
        room = Path(temporary)
        compile_one = functools.partial(_compile, compiler, room)
        objects = _side_by_side(compile_one, sources)
        library = room / "library.so"
        _run([compiler, *map(str, objects), *LINK, "-o", str(library)])
        body = library.read_bytes()
        library.write_bytes(body + hashlib.sha256(body).digest() + _TRAILER)
        os.replace(library, target)


def _side_by_side(compile_one: Callable[[Path], Path], sources: Sequence[Path]) -> list[Path]:
    with ThreadPoolExecutor(max_workers=max(2, len(os.sched_getaffinity(0)))) as pool:
        # The largest first: they end last.
        order = sorted(sources, key=lambda path: -path.stat().st_size)
        return list(pool.map(compile_one, order))


def _compile(compiler: str, room: Path, source: Path) -> Path:
    """A compiler that does not know an instruction set compiles the file without it: an empty table."""
    out = room / f"{source.stem}.o"
    command = [compiler, *FLAGS, "-c", str(source), "-o", str(out)]
    extra = next((flags for end, flags in ISA_FLAGS.items() if source.stem.endswith(end)), ())
    if not extra or platform.machine() not in ("x86_64", "AMD64"):
        _run(command)
        return out
    try:
        _run([*command, *extra])
    except BuildFailed as error:
        log.info("%s is left out: %s", source.name, error)
        _run(command)
    return out


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error: " in line] or done.stderr.splitlines()
        raise BuildFailed(f"{command[0]} failed: {lines[0] if lines else f'exit code {done.returncode}'}")

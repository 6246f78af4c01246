"""`ftagent doctor`: what this machine can do, each line with what to do when it falls short.

Looks and reads. Without --quick it compiles the native library where that is still to be done, and the last
check loads the embedded model and lets it answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from ftagent import __version__, adapters, paths
from ftagent.adapters import base
from ftagent.commands.common import emit, engine_options, json_flag, load_settings
from ftagent.conversation import Conversation, Message, Text
from ftagent.engine.api import Engine, GenerateRequest, SamplingParams
from ftagent.engine.machine import native
from ftagent.engine.machine.gpus import LEAST_CAPABILITY, Gpu
from ftagent.engine.machine.probe import Cpu, Machine, probe
from ftagent.engine.machine.profile import fingerprint, load_profile
from ftagent.engine.machine.record_threads import ISAS, cpu_isas
from ftagent.errors import FtError
from ftagent.events import Failed, Finished
from ftagent.hub import store
from ftagent.settings import Settings

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fail` means that the embedded model cannot run; `warn`, that something else cannot."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


@click.command()
@json_flag
@click.option("--quick", is_flag=True, help="Compile nothing, and do not load the embedded model.")
@click.option("--agents", is_flag=True, help="Let each agent that is found do a small task as well.")
def command(as_json: bool, quick: bool, agents: bool) -> int:
    """Check what this machine can do.

    Exit code 0 when the embedded model works here, else 1.
    """
    checks: list[Check] = []
    machine = probe()
    for check in _checks(machine, quick, agents):
        checks.append(check)
        if not as_json:
            click.echo(f"{check.status:<4}  {check.name:<16}  {check.found}")
            if check.advice:
                click.echo(f"{'':<24}-> {check.advice}")
    works = all(check.status != "fail" for check in checks)
    if as_json:
        rows = [asdict(check) for check in checks]
        emit({"version": __version__, "works": works, "checks": rows, "machine": asdict(machine)})
    return 0 if works else 1


def _checks(machine: Machine, quick: bool, agents: bool) -> Iterator[Check]:
    yield _python()
    yield _torch(bool(machine.gpus))
    yield _triton(bool(machine.gpus))
    yield from _machine_checks(machine, quick)
    for tool, purpose in (("node", "some agents"), ("npm", "installing agents"), ("git", "most agents")):
        yield _tool(tool, ("--version",), purpose)
    yield _tool("tmux", ("-V",), "agents and panes side by side")
    found = [_agent(adapter) for adapter in map(adapters.get, adapters.names()) if adapter.executable]
    yield from found
    yield _settings()
    yield from (_directory(*pair) for pair in _directories())
    yield _models()
    yield _locale()
    if not quick:
        yield _embedded_model()
    if agents:
        yield from _smoke([check.name for check in found if check.status == "ok"])


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    return Check("python", "ok" if sys.version_info >= (3, 11) else "fail", found)


def _torch(gpu: bool) -> Check:
    advice = "pip install torch==2.13.0"
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", "fail", "not installed", advice)
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    if numbers < (2, 11):
        return Check("torch", "fail", found, advice)
    if gpu and found.endswith("+cpu"):
        return Check("torch", "warn", f"{found}, which knows no GPU", f"to use the GPU: {advice}")
    return Check("torch", "ok", found)


def _triton(gpu: bool) -> Check:
    if importlib.util.find_spec("triton") is None:
        advice = "pip install triton" if gpu else ""
        return Check("triton", "warn" if gpu else "ok", "not installed; only a GPU needs it", advice)
    return Check("triton", "ok", importlib.metadata.version("triton"))


def _machine_checks(machine: Machine, quick: bool) -> Iterator[Check]:
    yield _cpu(machine.cpu)
    yield _memory(machine)
    yield _huge_pages(machine)
    yield _lockable(machine)
    if not machine.gpus:
        yield Check("gpu", "ok", f"none ({machine.no_gpu}); models run on the CPU")
    for gpu in machine.gpus:
        yield _gpu(gpu)
    if machine.compiler is None:
        yield Check(
            "compiler", "warn", "none found", "install g++ or clang++: the native library is built with it"
        )
    else:
        yield Check("compiler", "ok", machine.compiler.version)
    yield from _native(quick)
    yield _profile(machine)


def _cpu(found: Cpu) -> Check:
    features = " ".join(found.features) or "features unknown"
    slow = bool(found.features) and not {"avx2", "asimd"} & set(found.features)
    advice = "without AVX2 the CPU paths are slow" if slow else ""
    cores = f"{found.cores} cores"
    if found.quota is not None and found.quota < found.affinity:
        cores += f" by quota of {found.affinity}"
    elif found.physical is not None and found.physical < found.affinity:
        cores += f" ({found.physical} physical)"
    return Check("cpu", "warn" if slow else "ok", f"{found.name}, {cores}, {features}", advice)


def _memory(machine: Machine) -> Check:
    memory = machine.memory
    found = f"{(memory.limit or memory.total) / GIB:.1f} GiB, {memory.available / GIB:.1f} GiB available"
    if memory.available < 2 * GIB:
        return Check("memory", "warn", found, "the embedded model wants about 1.2 GiB; close something")
    return Check("memory", "ok", found)


def _huge_pages(machine: Machine) -> Check:
    mode = machine.memory.huge_pages
    if mode != "never":
        return Check("huge pages", "ok", mode or "this system does not tell")
    advice = "write `madvise` to /sys/kernel/mm/transparent_hugepage/enabled: the CPU reads experts faster"
    return Check("huge pages", "warn", mode, advice)


def _lockable(machine: Machine) -> Check:
    """What may be locked; drivers differ in whether they count what they register."""
    lockable, memory = machine.memory.lockable, machine.memory
    if lockable is None:
        return Check("lockable", "ok", "this system does not tell")
    everything = lockable >= (memory.limit or memory.total)
    advice = ""
    if machine.gpus and not everything:
        advice = "if loading says that layers are not pinned, raise it: `ulimit -l unlimited`, LimitMEMLOCK"
    return Check("lockable", "ok", "all memory" if everything else f"{lockable / GIB:.1f} GiB", advice)


def _native(quick: bool) -> Iterator[Check]:
    """The library that computes experts on the CPU and serves a GPU's decode steps, and its kernels."""
    state = native.state()
    fallback = "torch computes the CPU's experts instead, and decode on a GPU is slow where experts miss"
    if state == "missing":
        advice = "install g++ or clang++, or a wheel of ftagent that has the library"
        yield Check("native", "warn", f"none, and no compiler; {fallback}", advice)
        return
    if state == "uncompiled" and quick:
        yield Check("native", "ok", "not compiled yet; its first use does that, in some seconds")
        return
    began = time.monotonic()
    library = native.load()
    seconds = time.monotonic() - began
    if library is None:
        advice = "see the warning of the compiler or the loader, or set CXX to another compiler"
        yield Check("native", "warn", f"does not build or load; {fallback}", advice)
        return
    ways = {"prebuilt": "prebuilt", "cached": "compiled earlier"}
    yield Check("native", "ok", ways.get(state, f"compiled in {seconds:.1f} s"))
    kernels = cpu_isas()
    better = ", ".join(name for name in ISAS if name not in kernels)
    yield Check("kernels", "ok", kernels[-1] + (f"; no {better} here" if better else ""))


def _gpu(gpu: Gpu) -> Check:
    parts = [gpu.name]
    if gpu.memory_total is not None and gpu.memory_free is not None:
        parts.append(f"{gpu.memory_total / GIB:.1f} GiB, {gpu.memory_free / GIB:.1f} GiB free")
    if gpu.capability is not None:
        parts.append(f"compute {gpu.capability[0]}.{gpu.capability[1]}")
    if gpu.pcie_max_generation is not None and gpu.pcie_max_width is not None:
        now = f"now {gpu.pcie_generation or '?'} x{gpu.pcie_width or '?'}"
        parts.append(f"PCIe {gpu.pcie_max_generation} x{gpu.pcie_max_width} ({now})")
    if gpu.driver is not None:
        parts.append(f"driver {gpu.driver}")
    limit = _gpu_limit(gpu)
    return Check("gpu", "warn" if limit else "ok", ", ".join(parts), limit)


def _gpu_limit(gpu: Gpu) -> str:
    """What keeps a model from running on it at its best, and what to do; empty where nothing does."""
    if gpu.capability is not None and gpu.capability < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        return f"below compute {least} there is no BF16: models run on the CPU; use a newer card"
    if gpu.pcie_width is not None and gpu.pcie_width < (gpu.pcie_max_width or 0):
        return "fewer lanes than the card has: experts cross the link slowly; try another slot"
    if gpu.memory_total and gpu.memory_free is not None and 2 * gpu.memory_free < gpu.memory_total:
        return (
            "other programs hold more than half of its memory: see nvidia-smi; fewer experts fit beside them"
        )
    return ""


def _profile(machine: Machine) -> Check:
    """The figures of the first GPU, which is the one that `auto` takes."""
    found = load_profile(fingerprint(machine, machine.gpus[0] if machine.gpus else None))
    if found is None:
        return Check(
            "bandwidths", "ok", "not measured; `ftagent bench bandwidth` gives the engine a better start"
        )
    parts = [f"{found.date[:10]}, {found.threads} threads"]
    if found.read_bytes_per_s is not None:
        parts.append(f"memory {found.read_bytes_per_s / 1e9:.0f} GB/s")
    parts += [
        f"CPU {each.alone.bytes_per_s / 1e9:.0f} GB/s ({each.dtype}, {each.way})" for each in found.cpu[:1]
    ]
    parts += [f"link {each.alone.bytes_per_s / 1e9:.0f} GB/s" for each in found.link[:1]]
    return Check("bandwidths", "ok", ", ".join(parts))


def _tool(name: str, arguments: tuple[str, ...], purpose: str) -> Check:
    found = _output(name, *arguments)
    if found is None:
        return Check(name, "warn", "not found", f"install it for {purpose}")
    return Check(name, "ok", found.splitlines()[0])


def _agent(adapter: base.Adapter) -> Check:
    try:
        named = getattr(load_settings({}).values, adapter.setting)
        found = base.program(adapter, named, base.scrubbed(adapter, os.environ), Path.cwd(), ())
    except FtError as error:
        return Check(adapter.name, "warn", str(error))
    return Check(adapter.name, "ok", f"{found.version} ({' '.join(found.words)})")


def _smoke(names: list[str]) -> Iterator[Check]:
    """An agent that cannot do it takes nothing from the rest, so it is a warning."""
    from ftagent.commands.smoke import smoke_tests

    for agent, seconds, fault in smoke_tests(names):
        found = fault or f"did a small task in {seconds:.1f} s, with its start"
        advice = f"`ftagent run {agent} -p TASK` shows more" if fault else ""
        yield Check(f"{agent} runs", "warn" if fault else "ok", found, advice)


def _settings() -> Check:
    file = paths.config_file()
    try:
        load_settings({})
    except FtError as error:
        return Check("settings", "fail", str(error))
    return Check("settings", "ok", str(file) if file.exists() else f"defaults; {file} does not exist")


def _directories() -> tuple[tuple[str, Path, str], ...]:
    return (
        ("state", paths.state_dir(), "XDG_STATE_HOME"),
        ("data", paths.data_dir(), "XDG_DATA_HOME"),
        ("cache", paths.cache_dir(), "XDG_CACHE_HOME"),
    )


def _models() -> Check:
    found = list(store.pulled())
    if not found:
        return Check("models", "ok", "none pulled; `ftagent pull REPO` fetches one from the Hugging Face hub")
    named = ", ".join(record.repo + ("" if record.complete else " (not whole)") for _, record in found)
    begun = [record.repo for _, record in found if not record.complete]
    advice = f"`ftagent pull {begun[0]}` goes on where it stopped" if begun else ""
    return Check("models", "warn" if begun else "ok", named, advice)


def _directory(name: str, path: Path, variable: str) -> Check:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check(name, "ok", str(path))
    return Check(
        name, "fail", f"{path}: {existing} cannot be written", f"set {variable} to another directory"
    )


def _locale() -> Check:
    encoding = sys.stdout.encoding.lower()
    if encoding.replace("-", "") == "utf8":
        return Check("locale", "ok", f"{os.environ.get('LC_ALL') or os.environ.get('LANG') or 'C'}, utf-8")
    return Check("locale", "warn", encoding, "set LANG=C.UTF-8, or text outside ASCII will not show")


def _embedded_model() -> Check:
    began = time.monotonic()
    try:
        from ftagent.engine.engine import start_engine

        engine = start_engine(engine_options(Settings()))
        try:
            tokens = asyncio.run(_one_answer(engine))
        finally:
            engine.close()
    except FtError as error:
        return Check("model", "fail", str(error))
    # Guards the report: whatever is broken in an installation must become a line of it.
    except Exception as error:  # noqa: BLE001
        return Check("model", "fail", f"{type(error).__name__}: {error}"[:300])
    return Check("model", "ok", f"embedded, {tokens} tokens in {time.monotonic() - began:.1f} s with loading")


async def _one_answer(engine: Engine) -> int:
    """Tokens of a short greedy answer. Raises FtError when it does not come to its end."""
    prompt = Conversation((Message("user", (Text("What is ftagent?"),)),))
    request = GenerateRequest(prompt, SamplingParams(max_tokens=8, temperature=0))
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if isinstance(event, Failed):
                raise FtError(event.message)
            if isinstance(event, Finished):
                return event.usage.completion_tokens
    raise FtError("the answer ended without a last event")


def _output(program: str, *arguments: str) -> str | None:
    """What a program prints, stripped; None when it is absent, fails or says nothing."""
    path = shutil.which(program)
    if path is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            (path, *arguments),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.strip() or None if done.returncode == 0 else None
    return None

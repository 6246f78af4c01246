"""A server as a child process: start, where it listens, how much memory it takes, stop. Knows no HTTP."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL_S = 0.4
GIB = 2**30


@dataclass(slots=True)
class Peaks:
    """GiB over the level before the launch; `serving` counts from the end of loading."""

    vram: float = 0.0
    vram_serving: float = 0.0
    host: float = 0.0
    resident: float = 0.0  # resident sets of the process group, pages of files included


class Monitor(threading.Thread):
    """Samples device and host memory, from before the launch on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = Peaks()
        self.serving = False
        self.group = 0
        self._vram = _vram_reader()
        self._vram_before = self._vram()
        self._host_before = _host_used()
        self._ended = threading.Event()

    def vram(self) -> float:
        """Device memory now."""
        return self._vram() - self._vram_before

    def run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.sample()

    def sample(self) -> None:
        peaks, vram = self.peaks, self.vram()
        peaks.vram = max(peaks.vram, vram)
        peaks.host = max(peaks.host, _host_used() - self._host_before)
        if self.serving:
            peaks.vram_serving = max(peaks.vram_serving, vram)
        if self.group:
            peaks.resident = max(peaks.resident, _resident(self.group))

    def end(self) -> None:
        self._ended.set()
        self.join()


def _vram_reader() -> Callable[[], float]:
    """A function that gives the device memory in use, in GiB; 0 where no device can be asked."""
    with contextlib.suppress(
        Exception
    ):  # no such package, library or device: any of them means the same here
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return lambda: float(pynvml.nvmlDeviceGetMemoryInfo(device).used / GIB)
    if not shutil.which("nvidia-smi"):
        return lambda: 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]

    def ask() -> float:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout.split()
        return int(answer[0]) / 1024 if answer else 0.0

    return ask


def _host_used() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (values["MemTotal"] - values["MemAvailable"]) / 2**20


def _resident(group: int) -> float:
    """Sum over the processes of a process group or session."""
    pages = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended in between
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if group in (int(fields[2]), int(fields[3])):
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") / GIB


class Child:
    """A server in a session of its own. Its stdout goes to NAME.out, its stderr to NAME.log."""

    def __init__(self, launch: str, logs: Path, name: str, env: Mapping[str, str]) -> None:
        self.out, self.log = logs / f"{name}.out", logs / f"{name}.log"
        self.started = time.perf_counter()
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", "exec " + launch],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self.group = self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def announced(self) -> Mapping[str, Any] | None:
        """The JSON object that it wrote as a line to stdout and that names a `url`."""
        for line in self.out.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "url" in found:
                    return found
        return None

    def last_words(self) -> str:
        """The end of its logs, for an error message."""
        lines = [
            line for file in (self.out, self.log) for line in file.read_text(errors="replace").splitlines()
        ]
        return " | ".join(lines[-3:])[-400:]

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, until no process of the group is left."""
        for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                ended = self._process.poll() is not None
                if ended and not self._alive():
                    return
                time.sleep(0.1)

    def _alive(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        return True

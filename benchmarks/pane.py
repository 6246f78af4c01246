"""What the run screen costs: its share of a core, the way of a key to the agent, and a burst of output.

    python -m benchmarks.pane [--seconds 20] [--json]

The screen (150x40, figures that change four times a second, no engine) runs in a process of its own on a PTY
that is read and thrown away. In its pane a program writes 100 words a second, as an agent does while it
streams, with a spinner in its title, and notes when it reads each key. In the second half of that, keys are
sent 20 times a second. Then it writes two megabytes at once, while keys go on.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from dataclasses import replace
from pathlib import Path

import psutil

COLUMNS, ROWS = 150, 40
KEY_S = 0.05
BURST = b"".join(b"%02d" % number for number in range(49)) + b"\r\n"
BURST_BYTES = 2_000_000


def program(notes: Path, seconds: float) -> None:
    """What runs in the pane. Each line of `notes` is a key and the time.monotonic() of its reading."""
    tty.setraw(0)
    log = notes.open("a", buffering=1, encoding="utf-8")

    def read() -> None:
        while data := os.read(0, 1024):
            now = time.monotonic()
            for key in data.decode():
                log.write(f"{key} {now}\n")

    threading.Thread(target=read, daemon=True).start()
    log.write(f"start {time.monotonic()}\n")
    began = time.monotonic()
    for number in itertools.count():
        at = began + number / 100
        if at > began + seconds:
            break
        time.sleep(max(0.0, at - time.monotonic()))
        title = f"\x1b]0;{'⠂⠐⠒'[number // 10 % 3]} streaming\x07" if number % 10 == 0 else ""
        end = "\r\n" if number % 14 == 13 else " "
        os.write(1, f"{title}\x1b[{1 if number % 9 == 0 else 0}mword{number % 100}\x1b[0m{end}".encode())
    log.write(f"streamed {time.monotonic()}\n")
    time.sleep(1)
    log.write(f"burst {time.monotonic()}\n")
    data = memoryview(BURST * (BURST_BYTES // len(BURST)))
    while data:
        data = data[os.write(1, data) :]
    log.write(f"written {time.monotonic()}\n")
    time.sleep(1)
    log.write(f"end {time.monotonic()}\n")


def screen(notes: Path, seconds: float) -> None:
    """The run screen around `program`, with figures that change at every tick."""
    from ftagent.engine.api import ModelInfo
    from ftagent.engine.stats import ExpertStats, PoolStats, Snapshot
    from ftagent.tui.feed import Tick
    from ftagent.tui.host_keys import HostKeys
    from ftagent.tui.run import Agent, run_agent
    from ftagent.tui.terminal.emulator import Colours

    pools = (PoolStats("kv", 12, 1024, 16384, 64), PoolStats("experts", 1152, 12288, 3 << 20))
    experts = ExpertStats(10, 5, 3, 1, 2, (0.5,) * 40, bytes_link=1, bytes_cpu=1, link_ns=1, cpu_ns=1, q=0.5)
    figures = Snapshot(0.0, 0, "decode", 1, 0, 100.0, None, 9, 8, 7, pools, experts)

    class Changing:
        def __init__(self) -> None:
            self._steps = itertools.count()

        def tick(self) -> Tick:
            step = next(self._steps)
            now = time.monotonic()
            experts_now = experts._replace(recent_hits=3 + step % 5, bytes_link=1 + step * 10**6)
            speed = 100.0 + step % 17
            snapshot = replace(
                figures,
                time=now,
                step=step,
                decode_tokens_per_s=speed,
                experts=experts_now,
                context_used=step,
            )
            return Tick(ModelInfo("m", "f", 65536, 10), "ok", snapshot, now)

        def close(self) -> None: ...

    here = (sys.executable, "-m", "benchmarks.pane", "--program", str(notes), "--seconds", str(seconds))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONPATH": os.getcwd()}
    run_agent(Agent("benchmark", here, environment), Changing(), HostKeys("ctrl+]"), Colours())


def measure(seconds: float) -> dict[str, float]:
    """Run it all once; see `report` for the meaning of the figures."""
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        notes.touch()
        master, slave = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        command = (sys.executable, "-m", "benchmarks.pane", "--screen", str(notes), "--seconds", str(seconds))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        written = [0]
        threading.Thread(target=drain, args=(master, written), daemon=True).start()
        process = psutil.Process(child.pid)
        until(notes, "start")
        sent: list[float] = []
        cpu_before, began, bytes_before = process.cpu_times(), time.monotonic(), written[0]
        time.sleep(seconds / 2)
        cpu_after, ended, bytes_after = process.cpu_times(), time.monotonic(), written[0]
        while not noted(notes, "streamed"):
            send(master, sent)
        streaming = len(sent)
        while not noted(notes, "end") and child.poll() is None:
            send(master, sent)
        child.wait(20)
        cpu = cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system
        return {
            "core_share": cpu / (ended - began),
            "terminal_bytes_per_s": (bytes_after - bytes_before) / (ended - began),
            **latencies(notes, sent, streaming),
        }


def drain(master: int, written: list[int]) -> None:
    try:
        while data := os.read(master, 65536):
            written[0] += len(data)
    except OSError:
        pass


def send(master: int, sent: list[float]) -> None:
    sent.append(time.monotonic())
    os.write(master, b"k")
    time.sleep(KEY_S)


def noted(notes: Path, word: str) -> bool:
    return any(line.startswith(word) for line in notes.read_text(encoding="utf-8").splitlines())


def until(notes: Path, word: str) -> None:
    while not noted(notes, word):
        time.sleep(0.05)


def latencies(notes: Path, sent: list[float], streaming: int) -> dict[str, float]:
    """Milliseconds of keys on their way, while words stream and while the burst is written."""
    lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    marks = {line[0]: float(line[1]) for line in lines if line[0] != "k"}
    read = [float(line[1]) for line in lines if line[0] == "k"]
    ways = [1000 * (got - at) for at, got in zip(sent, read, strict=False)]
    calm = sorted(ways[:streaming])
    in_burst = [
        way for at, way in zip(sent, ways, strict=False) if marks["burst"] <= at <= marks["written"] + 0.05
    ]
    return {
        "keys": float(len(calm)),
        "key_ms_median": statistics.median(calm),
        "key_ms_p95": calm[int(0.95 * len(calm))],
        "key_ms_worst": calm[-1],
        "burst_s": marks["written"] - marks["burst"],
        "burst_key_ms_worst": max(in_burst, default=0.0),
    }


def report(figures: dict[str, float]) -> None:
    rows = (
        ("share of a core, 100 words/s, figures at 4 Hz", 100 * figures["core_share"], "%"),
        ("written to the terminal meanwhile", figures["terminal_bytes_per_s"] / 1000, "KB/s"),
        (f"key to the program, median of {figures['keys']:.0f}", figures["key_ms_median"], "ms"),
        ("  95 of 100 within", figures["key_ms_p95"], "ms"),
        ("  worst", figures["key_ms_worst"], "ms"),
        ("two megabytes at once, taken in", figures["burst_s"], "s"),
        ("  worst key meanwhile", figures["burst_key_ms_worst"], "ms"),
    )
    for words, value, unit in rows:
        print(f"{words:<50} {value:8.1f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--screen", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        program(options.program, options.seconds)
    elif options.screen:
        screen(options.screen, options.seconds)
    else:
        figures = measure(options.seconds)
        print(json.dumps(figures)) if options.json else report(figures)


if __name__ == "__main__":
    main()

"""Does an open chat screen slow decoding? The embedded model decodes the same tokens twice, in turn:

    python benchmarks/screen_decode.py [--runs 5] [--tokens 600]

once in `ftagent chat`'s screen (120x40, on a PTY that is read and thrown away), once behind the gateway for
an HTTP client in another process. Prints the decode rate of each run, both medians and their ratio. Replies
are made long by ignoring the end-of-turn token.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
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
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx

from ftagent.events import Finished

PROMPT = "What is a mixture of experts?"


class Long:
    """The engine of a child process; replies run on for `tokens` tokens, and each rate goes to `file`."""

    def __init__(self, tokens: int, file: Path) -> None:
        from ftagent.engine.engine import start_engine
        from ftagent.engine.options import EngineOptions

        self._engine = start_engine(EngineOptions(context=8192))
        self._tokens, self._file = tokens, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Any) -> AsyncGenerator[Any, None]:
        sampling = dataclasses.replace(request.sampling, ignore_eos=True, max_tokens=self._tokens)
        async for event in self._engine.generate(dataclasses.replace(request, sampling=sampling)):
            if isinstance(event, Finished):
                done = self._engine.stats().recent_requests[-1]
                assert done.first_token_s is not None
                rate = (done.completion_tokens - 1) / (done.total_s - done.first_token_s)
                self._file.write_text(json.dumps(rate), encoding="utf-8")
            yield event


def screen(engine: Long, directory: Path) -> None:
    """Child: the chat screen; the parent types and, at the end, leaves."""
    from ftagent.sessions import SessionStore
    from ftagent.tui.chat import run_chat

    run_chat(engine, store=SessionStore(directory))


def serve(engine: Long, directory: Path) -> None:
    """Child: the gateway; its address goes to a file, and it ends when its standard input does."""
    from ftagent.gateway.server import start_gateway

    with start_gateway(engine) as gateway:
        (directory / "address").write_text(json.dumps([gateway.url, gateway.token]), encoding="utf-8")
        sys.stdin.read()


def wait_for(file: Path) -> Any:
    """The JSON in a file, once it is there and whole."""
    pause = threading.Event()
    for _ in range(6000):
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            pause.wait(0.02)
    raise TimeoutError(f"{file} was not written within two minutes")


def on_screen(tokens: int) -> float:
    """One run in the chat screen; its decode rate, tokens/s."""
    with tempfile.TemporaryDirectory() as name:
        rate = Path(name) / "rate"
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(
                sys.executable,
                [sys.executable, __file__, "--child", "screen", str(rate), "--tokens", str(tokens)],
            )
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        seen = threading.Event()
        threading.Thread(target=_drain, args=(terminal, seen), daemon=True).start()
        assert seen.wait(60), "the screen did not come up"
        os.write(terminal, PROMPT.encode() + b"\r")
        result = float(wait_for(rate))
        os.kill(child, 15)
        os.waitpid(child, 0)
        return result


def _drain(terminal: int, seen: threading.Event) -> None:
    """Read what the screen draws; `seen` is set once it has drawn its input line."""
    drawn = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the child is gone
            return
        drawn = (drawn + piece)[-200_000:]
        if b"embedded model" in drawn:
            seen.set()


def served(tokens: int) -> float:
    """One run behind the gateway, streamed to this process; its decode rate, tokens/s."""
    with tempfile.TemporaryDirectory() as name:
        rate = Path(name) / "rate"
        command = [sys.executable, __file__, "--child", "serve", str(rate), "--tokens", str(tokens)]
        with subprocess.Popen(command, stdin=subprocess.PIPE):
            url, token = wait_for(Path(name) / "address")
            body = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120
            ) as reply:
                for _ in reply.iter_raw():
                    pass
            return float(wait_for(rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--child", nargs=2, metavar=("MODE", "FILE"))
    arguments = parser.parse_args()
    if arguments.child:
        mode, file = arguments.child
        engine = Long(arguments.tokens, Path(file))
        (screen if mode == "screen" else serve)(engine, Path(file).parent)
        return
    pairs = [(on_screen(arguments.tokens), served(arguments.tokens)) for _ in range(arguments.runs)]
    for shown, plain in pairs:
        print(f"screen {shown:6.1f}  served {plain:6.1f}  ratio {shown / plain:.3f}")
    shown, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"median {shown:6.1f}         {plain:6.1f}  ratio {shown / plain:.3f}")


if __name__ == "__main__":
    main()

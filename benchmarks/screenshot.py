"""Makes docs/run-screen.svg again: the real Claude Code in the pane, on the embedded model, while it answers.

    python -m benchmarks.screenshot [--out docs/run-screen.svg]

Needs Claude Code (on PATH, or named by FTAGENT_CLAUDE). The engine holds half of the experts, so that the
figures have something to show; the picture is taken in the middle of the second answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from ftagent import adapters
from ftagent.adapters import base
from ftagent.commands.interactive import pane_environment
from ftagent.engine.engine import start_engine
from ftagent.engine.options import EngineOptions
from ftagent.gateway.server import start_gateway
from ftagent.tui.feed import TICK_S, LocalFeed
from ftagent.tui.host_keys import HostKeys
from ftagent.tui.run import Agent, RunApp
from ftagent.tui.terminal.emulator import Colours, row_text

SIZE = (150, 38)
PROMPTS = ("What is ftagent?", "How do I run an agent on my own model?")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/run-screen.svg"))
    out = parser.parse_args().out.absolute()
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "project"
        project.mkdir()
        subprocess.run(("git", "init", "-q"), cwd=project, check=True)
        engine = start_engine(EngineOptions(experts="0.5"))
        try:
            with start_gateway(engine) as gateway:
                target = base.Target(gateway.url, gateway.token or "", engine.model.id, engine.model.context)
                app = RunApp(
                    agent(target, Path(scratch), project), LocalFeed(engine), HostKeys("ctrl+]"), Colours()
                )
                os.chdir(project)
                picture = asyncio.run(shoot(app, lambda: engine.stats().phase == "decode"))
        finally:
            engine.close()
    out.write_text(picture, encoding="utf-8")
    print(f"{out}: {out.stat().st_size // 1000} KB")


def agent(target: base.Target, scratch: Path, project: Path) -> Agent:
    """Claude Code as `ftagent run` starts it, with a home of its own."""
    adapter = adapters.get("claude-code")
    environment = {**base.scrubbed(adapter, os.environ), "HOME": str(scratch)}
    named = os.environ.get("FTAGENT_CLAUDE")
    program = base.program(adapter, named, environment, project, ())
    directory = scratch / "agent"
    directory.mkdir()
    order = base.Order(
        program=program.words, target=target, directory=directory, project=project, lean=True, arguments=()
    )
    launch = adapter.prepare(order)
    return Agent(
        "claude-code",
        launch.arguments,
        pane_environment(adapter, {**environment, **launch.environment}),
    )


async def shoot(app: RunApp, decoding: Callable[[], bool]) -> str:
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "manual mode" in shown(app))
        for number, prompt in enumerate(PROMPTS):
            for character in prompt:
                await pilot.press(
                    "space" if character == " " else "question_mark" if character == "?" else character
                )
            await until(pilot, lambda prompt=prompt: prompt in shown(app))
            await pilot.press("enter")
            if number == 0:
                await until(pilot, lambda: "done" in shown(app))
        await until(pilot, decoding)
        await until(pilot, lambda: len(last_answer(app)) > 20 or not decoding())
        await pilot.pause(TICK_S)
        picture = app.export_screenshot(title="ftagent run claude-code")
        app.view.child.end(9)
    return picture


def shown(app: RunApp) -> str:
    emulator = app.view.emulator
    return "\n".join(row_text(emulator.row(index)) for index in range(emulator.rows))


def last_answer(app: RunApp) -> str:
    """The text behind the second bullet, where the second answer begins."""
    return "".join(shown(app).split("●")[2:3]).strip()


async def until(pilot: Pilot[int], condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"never came; the screen is:\n{shown(pilot.app)}")  # type: ignore[arg-type]
        await pilot.pause(0.02)


if __name__ == "__main__":
    main()

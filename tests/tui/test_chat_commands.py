"""Slash commands under Pilot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tui.stage import conversation, on_stage, partial

pytestmark = pytest.mark.anyio


async def test_new_and_resume_commands(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.ask("hello")
        first = stage.app.session.id
        await stage.send("/new")
        await stage.until(lambda: stage.prompts == [])
        assert stage.app.session.id != first
        await stage.ask("again")
        assert len(conversation(stage.engine.requests[-1]).messages) == 1
        await stage.send(f"/resume {first}")
        await stage.until(lambda: stage.prompts == ["› hello"] and stage.remarks == [f"resumed {first}"])
        await stage.send("/resume")  # the other one, each time
        await stage.until(lambda: stage.prompts == ["› again"])
        await stage.send("/resume")
        await stage.until(lambda: stage.prompts == ["› hello"])
        await stage.send("/resume nonsense")
        await stage.until(lambda: stage.footer.startswith("no session starts with 'nonsense'"))
        assert stage.prompts == ["› hello"]


async def test_sessions_cannot_be_changed_under_an_answer(tmp_path: Path) -> None:
    async with on_stage(tmp_path, partial("x")) as stage:
        await stage.send("go")
        await stage.until(lambda: stage.engine.active == 1)
        await stage.send("/new")
        await stage.until(lambda: stage.footer == "still answering; Esc stops it")
        assert stage.app.session.prompts == ("go",)


async def test_the_list_of_sessions(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("/sessions")
        await stage.until(lambda: stage.remarks == [f"no sessions yet in {tmp_path}"])
        await stage.ask("what is \x1b[31m this?")
        await stage.send("/sessions")
        await stage.until(lambda: len(stage.remarks) == 2)
        assert stage.remarks[1].startswith(stage.app.session.id)
        assert stage.remarks[1].endswith("1 turns  what is [31m this?")


async def test_the_thinking_switch(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        for command, said, sent in [
            ("/think on", "thinking: on", True),
            ("/think off", "thinking: off", False),
            ("/think", "thinking: off", False),
            ("/think perhaps", "/think takes on or off, not 'perhaps'", False),
        ]:
            await stage.send(command)
            await stage.until(lambda said=said: stage.footer == said)  # type: ignore[misc]
            await stage.ask("hello")
            assert conversation(stage.engine.requests[-1]).thinking is sent


async def test_help_and_stats_are_shown(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("/help")
        await stage.until(lambda: len(stage.remarks) == 1)
        assert "Shift+Enter or Ctrl+J" in stage.remarks[0]
        assert "/export FILE" in stage.remarks[0]
        await stage.pilot.press("f1")
        await stage.until(lambda: len(stage.remarks) == 2)
        await stage.send("/stats")
        await stage.until(lambda: len(stage.remarks) == 3)
        assert "900 hits, 100 misses, 42 evictions" in stage.remarks[2]
        assert "90.0 % –" in stage.remarks[2]  # a layer without look-ups is unknown


async def test_copy_goes_to_the_terminal(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("/copy")
        await stage.until(lambda: stage.footer == "there is no answer to copy yet")
        await stage.ask("hello")
        await stage.send("/copy")
        await stage.until(lambda: stage.footer == "sent to the terminal's clipboard")
        assert stage.app.clipboard == "You said **hello**, message 1, thinking None."


async def test_export_writes_once(tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    async with on_stage(tmp_path) as stage:
        await stage.send(f"/export {target}")
        await stage.until(lambda: stage.footer == "there is nothing to export yet")
        await stage.ask("hello")
        await stage.send("/export")
        await stage.until(lambda: stage.footer == "/export needs a file name")
        await stage.send(f"/export {target}")
        await stage.until(lambda: stage.footer == f"written to {target}")
        written = target.read_text()
        await stage.send(f"/export {target}")
        await stage.until(lambda: stage.footer == f"{target} exists; choose another name")
        assert target.read_text() == written
        assert "\n## You\n\nhello\n\n## Model\n\nYou said **hello**" in written


async def test_an_unknown_command_names_the_nearest_and_is_given_back(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.send("/hlep")
        await stage.until(lambda: "did you mean /help?" in stage.footer)
        assert stage.app.prompt.text == "/hlep"
        await stage.ask("/etc/hosts is what?")
        assert conversation(stage.engine.requests[0]).messages[0].text == "/etc/hosts is what?"

"""What the chat shows under Pilot: sizes, figures, and text that must stay text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftagent.events import Finished, TextDelta, ThinkingDelta
from ftagent.tui.past import PastAnswer
from ftagent.tui.widgets import EMBEDDED_NOTE, FiguresColumn, StatusRow
from tests.support.chat_runner import HOSTILE, EmbeddedEngine, script_for
from tests.tui.stage import FOREVER, USAGE, on_stage, words

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("size", "column", "row"),
    [
        ((300, 100), True, False),
        ((100, 15), True, False),
        ((99, 40), False, True),
        ((60, 15), False, True),
        ((59, 15), False, False),
        ((60, 14), False, False),
        ((200, 14), False, False),
        ((20, 5), False, False),
    ],
)
async def test_figures_give_way_on_small_terminals(
    tmp_path: Path, size: tuple[int, int], column: bool, row: bool
) -> None:
    async with on_stage(tmp_path) as stage:
        await stage.pilot.resize_terminal(*size)
        await stage.until(lambda: stage.app.size == size)
        assert stage.app.query_one(FiguresColumn).display is column
        assert stage.app.query_one(StatusRow).display is row
        await stage.ask("hello")
        await stage.until(lambda: "7 out" in stage.closing_lines[-1])
        assert stage.app.prompt.region.height == 1
        assert stage.app.prompt.region.bottom <= size[1]
        if column or row:
            await stage.until(lambda: "96 / 128" in stage.screen_text())
        if size != (20, 5):
            assert "You said hello" in stage.screen_text()


async def test_a_storm_of_resizes_while_streaming(tmp_path: Path) -> None:
    async with on_stage(
        tmp_path, lambda request: [*[TextDelta("word ")] * 50, Finished("stop", USAGE)]
    ) as stage:
        await stage.send("go")
        for step in range(25):
            await stage.pilot.resize_terminal(40 + 6 * step, 10 + 2 * step)
        await stage.until(lambda: not stage.app.answering)
        await stage.until(lambda: stage.answers == ["word " * 50])


async def test_the_column_shows_the_engine_and_the_last_turn(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        column = stage.app.query_one(FiguresColumn)
        await stage.until(lambda: "○ idle" in words(column))
        rows = {line[:12].strip(): line[12:].strip() for line in words(column).splitlines()}
        assert rows["decode"] == "–"
        assert rows["first token"] == "–"
        assert rows["expert hits"] == "90.0 %"
        assert rows["KV tokens"] == "768 / 65,536"
        await stage.ask("hello")
        await stage.until(lambda: "96 / 120" in words(column))


async def test_the_model_cannot_act_on_the_terminal_or_make_links(tmp_path: Path) -> None:
    async with on_stage(tmp_path, size=(120, 40)) as stage:
        await stage.ask("hostile")
        await stage.until(lambda: "7 out" in stage.closing_lines[0])
        text = stage.screen_text()
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
        for shown in (
            "]0;owned[2J31mred",
            "[click](file:///etc/passwd)",
            "<script>alert(1)</script>",
            "<b>bold</b>",
        ):
            assert shown in text
        assert "[hidden]: http://reference" in text
        assert "&#27;[31m &#x202e; after" in text
        width, height = stage.app.size
        metas = [stage.app.screen.get_style_at(x, y).meta for x in range(width) for y in range(height)]
        assert not any("@click" in meta for meta in metas)
        await stage.ask(HOSTILE)  # the user's own text as well, and the answer as a past one
        past = "\n".join(
            "".join(part.text for part in line) for line in stage.app.query_one(PastAnswer).draw(100)
        )
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(stage.screen_text() + past)
        assert "[click](file:///etc/passwd)" in past
        assert "<script>alert(1)</script>" in past


async def test_markup_of_the_framework_in_any_text_is_plain(tmp_path: Path) -> None:
    markup = "[bold]x[/bold] [@click=app.exit]y[/] [/"
    async with on_stage(
        tmp_path, lambda request: [ThinkingDelta(markup), TextDelta(markup), FOREVER]
    ) as stage:
        await stage.pilot.press("ctrl+o")
        await stage.send(markup)
        await stage.until(lambda: stage.screen_text().count(markup) == 3)


async def test_the_embedded_model_says_so(tmp_path: Path) -> None:
    async with on_stage(tmp_path, engine=EmbeddedEngine(script_for)) as stage:
        await stage.until(lambda: EMBEDDED_NOTE in stage.screen_text())
    async with on_stage(tmp_path) as stage:
        await stage.until(lambda: "scripted on cpu" in stage.screen_text())
        assert "embedded" not in stage.screen_text()


async def test_a_record_that_cannot_be_written_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with on_stage(tmp_path / "file") as stage:
        await stage.send("hello")
        await stage.until(lambda: stage.footer.startswith("cannot write the session"))
        await stage.until(lambda: stage.answers != [] and stage.answers[0].startswith("You said **hello**"))

"""Streamed Markdown: what is kept as finished must be what the whole text would have become."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it.token import Token
from textual.app import App, ComposeResult

from ftagent.tui.lines import MarkdownLines, finished_length, markdown_parser

PIECES = [
    "word ",
    "\n",
    "\n\n",
    "# ",
    "- ",
    "1. ",
    "    ",
    "```\n",
    "> ",
    "| a | b |\n",
    "|--|--|\n",
    "---\n",
    "**",
    "`",
]
markdown = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def shape(tokens: list[Token]) -> list[tuple[str, str, str]]:
    return [(token.type, token.tag, token.content) for token in tokens]


@settings(deadline=None, max_examples=300)
@given(markdown, st.lists(st.integers(0, 60), max_size=6))
def test_finished_blocks_parse_as_they_do_in_the_whole(text: str, cuts: list[int]) -> None:
    parse = markdown_parser().parse
    start, chunks = 0, []
    for cut in sorted({*cuts, len(text)}):
        length = finished_length(text[start:cut])
        if length > 0:
            chunks.append(text[start : start + length])
            start += length
    chunks.append(text[start:])
    assert "".join(chunks) == text
    assert [row for chunk in chunks for row in shape(parse(chunk))] == shape(parse(text))


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", ""),
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", ""),  # the line may still become part of something else
        ("one\n\ntwo\n", "one\n\n"),
        ("one\n#", ""),
        ("```\ncode\n\nmore\n", ""),
        ("```\ncode\n```\nafter\n", "```\ncode\n```\n"),
        ("- a\n- b\n\nafter\n", "- a\n- b\n\n"),
    ],
)
def test_finished_length(text: str, finished: str) -> None:
    assert text[: finished_length(text)] == finished


class _App(App[None]):
    CSS = "MarkdownLines { height: auto; }"

    def compose(self) -> ComposeResult:
        yield MarkdownLines()


@pytest.mark.anyio
async def test_streamed_lines_equal_those_drawn_at_once() -> None:
    text = (
        "# Head\n\nA paragraph that is long enough to wrap.\n\n- one\n- two\n\n```\ncode\n```\n\nThe *end*."
    )
    app = _App()
    async with app.run_test(size=(30, 40)) as pilot:
        lines = app.query_one(MarkdownLines)
        for end in range(len(text) + 1):
            lines.extend(text[:end])
            await pilot.pause()
        streamed = [strip.text.rstrip() for strip in lines.render_lines(lines.size.region)]
        fresh = MarkdownLines()
        await app.mount(fresh)
        fresh.extend(text)
        at_once = ["".join(part.text for part in line).rstrip() for line in fresh.draw(lines.size.width)]
        assert streamed == at_once
        assert [line.strip() for line in streamed if line.strip()] == [
            "Head",
            "A paragraph that is long",
            "enough to wrap.",
            "• one",
            "• two",
            "code",
            "The end.",
        ]

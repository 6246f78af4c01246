"""The table of collected cases names tests that exist, and leaves no case without one or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "cases.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ROWS = re.findall(r"^\| (R\d+) \|.*\| (.+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_named_test_exists(file: str, name: str) -> None:
    source = (REPOSITORY / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)


def test_every_row_has_a_test_or_says_what_it_waits_for() -> None:
    assert len(ROWS) == len({case for case, _ in ROWS}) == 33
    assert all("::" in shown or "not yet: needs " in shown for _, shown in ROWS)
    mentions = set(re.findall(r"tests/[\w/]+\.py", PAGE))
    assert all((REPOSITORY / file).exists() for file in mentions)

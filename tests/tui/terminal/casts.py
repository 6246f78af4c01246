"""Recordings of terminal output in the asciicast v3 format: https://docs.asciinema.org/manual/asciicast/v3/.

A recording is tied to its size: replayed at another one it is garbage. Events are [seconds, "o", text] and
[seconds, "r", "COLUMNSxROWS"].
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

RECORDINGS = Path(__file__).parent / "recordings"


class Size(NamedTuple):
    columns: int
    rows: int


Event = bytes | Size  # output, or the size from here on


class Cast(NamedTuple):
    size: Size
    events: tuple[Event, ...]

    @property
    def final_size(self) -> Size:
        return next((event for event in reversed(self.events) if isinstance(event, Size)), self.size)


def read_cast(path: Path) -> Cast:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    term = json.loads(header)["term"]
    events = tuple(_event(*json.loads(line)) for line in lines)
    return Cast(Size(term["cols"], term["rows"]), events)


def write_cast(path: Path, size: Size, title: str, events: Iterable[tuple[float, str, str]]) -> None:
    header = {"version": 3, "term": {"cols": size.columns, "rows": size.rows}, "title": title}
    lines = [header, *([round(interval, 3), kind, data] for interval, kind, data in events)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def names() -> list[str]:
    return sorted(path.stem for path in RECORDINGS.glob("*.cast"))


def _event(interval: float, kind: str, data: str) -> Event:
    if kind == "r":
        columns, rows = data.split("x")
        return Size(int(columns), int(rows))
    return data.encode()

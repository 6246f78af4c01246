"""What passes between the prefix cache and a request: where it resumes, and what is known while it runs.

Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ftagent.engine.context.tree import Anchor, Line, Path


class Match(NamedTuple):
    """Where a request can resume: `position` tokens lie in `pages`, and `snapshot` is the state behind them.

    `matched` tokens are known in all; those behind `position` have no state to resume with. The last page may
    be filled in part; with `sole`, nothing but this prefix is in it, and nobody else holds it.
    """

    position: int
    pages: list[int]
    snapshot: Any
    matched: int
    anchor: Anchor | None
    path: Path
    sole: bool


@dataclass(slots=True, eq=False)
class Visit:
    """What the cache knows of one request while it runs."""

    line: Line
    rolling: Anchor | None = None  # behind the newest chunk; the next one takes its place
    marks: list[Anchor] = field(default_factory=list)  # kept at the request's marks

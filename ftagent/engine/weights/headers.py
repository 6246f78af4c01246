"""JSON from files that nobody vouches for: index and header texts of checkpoints. Knows no format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ftagent.errors import LoadFailed

MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors' reference implementation


def parse_object(file: Path, text: bytes) -> dict[str, Any]:
    """The JSON object that `text` holds. Raises LoadFailed naming `file`: also for a key that is there twice,
    of which readers would believe different ones.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # also: not UTF-8, numbers of absurd length
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise LoadFailed(f"{file}: not valid JSON ({reason}); download the file again") from error
    if not isinstance(parsed, dict):
        raise LoadFailed(f"{file}: not a JSON object; download the file again")
    return parsed


def is_count(value: object) -> TypeGuard[int]:
    """A whole number that is not negative; JSON's `true` is none."""
    return type(value) is int and value >= 0


def are_counts(values: object) -> TypeGuard[Sequence[int]]:
    """A list of such numbers."""
    return isinstance(values, list) and all(is_count(value) for value in values)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!r} is there twice")
    return found

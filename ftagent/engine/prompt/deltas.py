"""Neighbouring deltas of one kind made one. Knows the events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from ftagent.events import Event, TextDelta, ThinkingDelta, ToolCallDelta


def join_deltas(events: Iterable[Event]) -> list[Event]:
    """The same stream in as few events as possible."""
    joined: list[Event] = []
    for event in events:
        match event, joined[-1:]:
            case TextDelta(text), [TextDelta(before)]:
                joined[-1] = TextDelta(before + text)
            case ThinkingDelta(text), [ThinkingDelta(before)]:
                joined[-1] = ThinkingDelta(before + text)
            case ToolCallDelta(index, text), [ToolCallDelta(_, before)]:
                joined[-1] = ToolCallDelta(index, before + text)
            case _:
                joined.append(event)
    return joined

"""What agents are known to say about the place they work in, and in which order it is said to the model.

A prompt can be resumed as far as it is the same as an earlier one. So what changes from one request or one
session to the next goes behind what does not, where the order says nothing: no word is changed, added or left
out. Recorded with Claude Code 2.1.332; other texts are left as they are. Knows no template and no tokens.

- Its first message begins with reminders, one of which holds the state of the git repository: that one goes
  behind the other reminders, in front of what the person wrote.
- The environment (directory, platform, agents, skills, date) comes as a system message behind the first
  message, and after a compaction behind the newest one: it is said in front of the first message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from ftagent.conversation import Message

_REMINDER = re.compile(r"<system-reminder>\n.*?\n</system-reminder>\n+", re.DOTALL)
_CHANGING = re.compile(r"^# gitStatus$", re.MULTILINE)
_PLACE = re.compile(r"\A\s*# Environment\nYou have been invoked in the following environment:")


def is_place(message: Message) -> bool:
    """Whether this is the system message that describes the environment."""
    return message.role == "system" and _PLACE.match(message.text) is not None


def order(messages: Sequence[Message]) -> list[int]:
    """The messages' numbers as they are said: the one about the place, if there is one, in front of the first
    that is not the system's.
    """
    numbers = list(range(len(messages)))
    places = [number for number in numbers if is_place(messages[number])]
    first = next((number for number in numbers if messages[number].role != "system"), len(messages))
    if len(places) == 1 and places[0] > first:
        numbers.remove(places[0])
        numbers.insert(first, places[0])
    return numbers


def steady_first(text: str) -> tuple[str, tuple[int, ...]]:
    """A user's words, reminders in front of them that change behind those that do not; and where what follows
    a reminder begins, up to the first that changes.
    """
    reminders: list[str] = []
    place = 0
    while found := _REMINDER.match(text, place):
        reminders.append(found.group())
        place = found.end()
    steady = [reminder for reminder in reminders if not _CHANGING.search(reminder)]
    changing = [reminder for reminder in reminders if _CHANGING.search(reminder)]
    edges = tuple(itertools.accumulate(map(len, steady)))
    return "".join([*steady, *changing]) + text[place:], edges

"""Responses that clients may refer to later, in memory and within bounds.

The oldest go first. Knows items and response objects, no HTTP and no engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ftagent.errors import BadRequest
from ftagent.gateway.wire_responses_items import Item

KEPT_RESPONSES = 256
KEPT_CHARACTERS = 16 << 20  # as objects they take about four bytes each


class StoredResponse(NamedTuple):
    """`items` are all of the conversation, the reply's own at its end. `size` is in characters."""

    body: dict[str, Any]
    items: tuple[Item, ...]
    size: int


class StoredResponses:
    """One for each gateway; used by its event loop alone."""

    def __init__(self, most: int = KEPT_RESPONSES, characters: int = KEPT_CHARACTERS) -> None:
        self._most = most
        self._characters = characters
        self._responses: dict[str, StoredResponse] = {}
        self._outputs: dict[str, Item] = {}  # of the responses that are kept, by id
        self._size = 0

    def get(self, response_id: str) -> StoredResponse | None:
        return self._responses.get(response_id)

    def past(self, response_id: str) -> tuple[Item, ...]:
        """The conversation that ended with this response. Raises BadRequest when it is not kept."""
        found = self._responses.get(response_id)
        if found is None:
            raise BadRequest(
                f"{response_id!r} is not kept, only the last {self._most} are: send the whole input instead",
                "previous_response_id",
            )
        return found.items

    def resolve(self, items: Sequence[Item]) -> list[Item]:
        """The items, those that only refer to an earlier one replaced by it. Raises BadRequest."""
        resolved: list[Item] = []
        for index, item in enumerate(items):
            if item.kind != "item_reference":
                resolved.append(item)
                continue
            found = self._outputs.get(item.id or "")
            if found is None:
                raise BadRequest(f"{item.id!r} is not kept: send the item itself", f"input.{index}.id")
            resolved.append(found)
        return resolved

    def add(self, body: dict[str, Any], asked: Sequence[Item]) -> None:
        """Keep a response and the items it answered. One that is over the bounds alone is not kept."""
        output = [Item.model_validate(item) for item in body["output"]]
        items = (*asked, *output)
        # What responses of one conversation share is counted for each: it stays until the last one goes.
        size = len(json.dumps(body)) + sum(item.size for item in items)
        if size > self._characters:
            return
        self._responses[body["id"]] = StoredResponse(body, items, size)
        self._outputs.update((item.id, item) for item in output if item.id)
        self._size += size
        while self._size > self._characters or len(self._responses) > self._most:
            self.remove(next(iter(self._responses)))

    def remove(self, response_id: str) -> bool:
        """Whether it was kept."""
        found = self._responses.pop(response_id, None)
        if found is None:
            return False
        self._size -= found.size
        for item in found.body["output"]:
            self._outputs.pop(item["id"], None)
        return True

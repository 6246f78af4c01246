"""Request bodies: read within a bound, checked against a wire model, refused with the field's name.

Knows no protocol; every refusal is a `Refused` with its status.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from ftagent.gateway.errors import Refused

Model = TypeVar("Model", bound=BaseModel)

BODY_LIMIT = 64 << 20  # bytes
_LARGE_BODY = 1 << 20  # bytes

# A backslash escape of JSON: a surrogate pair, half of one, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)
_HALF_PAIR_BYTES = 6


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """The whole body. Raises Refused: 415 unless it is plain JSON by its headers, 413 over `limit` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refused(415, f"it is {kind or 'missing'!r}: send application/json", "content-type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "content-encoding is not supported: send the body as it is", "content-encoding")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise Refused(413, f"the body has {declared} bytes, at most {limit} are read")
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise Refused(413, f"the body has more than {limit} bytes")
            chunks.append(chunk)
    except ClientDisconnect:
        raise Refused(400, "the connection was closed before the body was complete") from None
    return b"".join(chunks)


def parse_body(model: type[Model], body: bytes) -> Model:
    """`body` as `model`. Raises Refused (400) that names the first offending field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid" and (mended := _mend_surrogates(body)) != body:
            return parse_body(model, mended)
        if first["type"] == "json_invalid":
            raise Refused(
                400, f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}"
            ) from None
        path = field_path(first["loc"])
        raise Refused(400, f"{path or 'body'}: {first['msg']}", path or None) from None


async def parse_request(model: type[Model], request: Request, limit: int = BODY_LIMIT) -> Model:
    """The body of `request` as `model`. Raises Refused."""
    body = await read_body(request, limit)
    if len(body) < _LARGE_BODY:
        return parse_body(model, body)
    # Checking megabytes takes long enough to hold up other streams.
    return await asyncio.to_thread(parse_body, model, body)


def field_path(location: Sequence[str | int]) -> str:
    """The place in the client's own words, `messages.0.content.1.text`: without the names of union branches.

    Branches are pydantic's own names of types, or tags that a wire model marked with a leading `@`.
    """
    parts = map(str, location)
    return ".".join(part for part in parts if part != "str" and not part.startswith("@") and "[" not in part)


def _mend_surrogates(body: bytes) -> bytes:
    """Replace halves of surrogate pairs, which agents send when they cut text, by U+FFFD."""

    def mend(match: re.Match[bytes]) -> bytes:
        whole = match.group()
        return rb"\ufffd" if len(whole) == _HALF_PAIR_BYTES else whole

    return _ESCAPE.sub(mend, body)

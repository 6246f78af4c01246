"""One streamed text completion over HTTP, with the time of every chunk. Knows no engine."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

SAMPLING = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "ignore_eos": True}


class ServerError(Exception):
    """The server refused a request, or broke off a reply."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`stamps`: seconds from sending the request to each chunk that carries text. Counts are the server's own
    (0 where it gives none)."""

    stamps: tuple[float, ...]
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask and what to present."""

    url: str
    token: str | None = None
    model: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def find_model(self) -> str:
        """The id that /v1/models lists first. Raises ServerError or OSError."""
        connection = self._connect(10)
        try:
            connection.request("GET", "/v1/models", headers=self._headers())
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ServerError(f"/v1/models answered {response.status}: {body[:200]!r}")
        return str(json.loads(body)["data"][0]["id"])

    def complete(self, prompt: str, tokens: int, timeout_s: float = 240) -> Reply:
        """Stream `tokens` tokens. Raises ServerError or OSError."""
        options = {"include_usage": True}
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "stream": True}
        payload = json.dumps({**body, "stream_options": options, **SAMPLING, **self.extra}).encode()
        connection = self._connect(timeout_s)
        try:
            connection.connect()
            sent = time.perf_counter()
            connection.request("POST", "/v1/completions", payload, self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(f"HTTP {response.status}: {response.read()[:300]!r}")
            return _read(response, sent)
        except http.client.HTTPException as error:
            raise ServerError(f"the reply broke off: {error!r}") from error
        finally:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        return headers if self.token is None else {**headers, "Authorization": f"Bearer {self.token}"}


def _read(response: http.client.HTTPResponse, sent: float) -> Reply:
    stamps: list[float] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    for event, now in _events(response):
        if "error" in event:
            raise ServerError(str(event["error"])[:300])
        usage = event.get("usage") or usage
        choices = event.get("choices") or [{}]
        if text := choices[0].get("text"):
            stamps.append(now - sent)
            texts.append(text)
    if not stamps:
        raise ServerError("the reply carried no text")
    details = usage.get("prompt_tokens_details") or {}
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens"))
    return Reply(tuple(stamps), "".join(texts), *(int(count or 0) for count in counts))


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[dict[str, Any], float]]:
    """The data of each server-sent event, with the time at which its line was complete."""
    while line := response.readline():
        now = time.perf_counter()
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data), now

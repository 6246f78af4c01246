"""Asks a gateway for its figures: the other end of /v1/ftagent/stats. Standard library alone, so that
`ftagent statusline` starts fast.
"""

from __future__ import annotations

import json
import typing
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any
from urllib.parse import urlsplit

from ftagent.engine.api import Health, ModelInfo
from ftagent.engine.stats import Snapshot
from ftagent.errors import ConfigError, EngineError
from ftagent.gateway.foreign import MetricsReader, model_of

PATH = "/v1/ftagent/stats"
TIMEOUT_S = 10.0  # of a list of models by a busy engine; figures are asked for by a thread that may wait
_ANSWER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """One answer. `age_s`: how long before it the snapshot's step was; its `time` is by the other's clock."""

    health: Health
    model: ModelInfo
    snapshot: Snapshot | None
    age_s: float


class NotThere(EngineError):
    """The other side answers, but has no such address."""


class Reader:
    """Reads the figures of one engine again and again: an ftagent's, or those of an engine that we know."""

    def __init__(self) -> None:
        self._metrics: MetricsReader | None = None  # once it has turned out not to be an ftagent
        self._model: ModelInfo | None = None

    def fetch(self, url: str, token: str | None) -> Report:
        """As `fetch_report`, for other engines as well."""
        if self._metrics is None:
            try:
                return fetch_report(url, token)
            except NotThere:
                self._metrics = MetricsReader()
        if self._model is None:
            self._model = model_of(get_json(url, "/v1/models", token), url)
        text = _get(url, "/metrics", token).decode(errors="replace")
        return Report("ok", self._model, self._metrics.snapshot(text), 0.0)


def fetch_report(url: str, token: str | None) -> Report:
    """The figures of the engine at `url`. Raises EngineError if it gives none, ConfigError for the token."""
    value = get_json(url, PATH, token)
    try:
        snapshot = build(Snapshot, value["snapshot"]) if value["snapshot"] is not None else None
        return Report(value["health"], build(ModelInfo, value["model"]), snapshot, float(value["age_s"]))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{url}{PATH}: not the figures of an ftagent of this version: {error}") from error


def get_json(url: str, path: str, token: str | None) -> Any:
    """GET `path` of the gateway at `url`. Raises EngineError, and ConfigError when the token is refused."""
    try:
        return json.loads(_get(url, path, token))
    except ValueError as error:
        raise EngineError(f"{url}: {path} is not JSON; is it an engine?") from error


def _get(url: str, path: str, token: str | None) -> bytes:
    origin = url.rstrip("/").removesuffix("/v1")
    request = urllib.request.Request(f"{origin}{path}")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    # A proxy of the user's must not be asked for what is on this machine.
    local = urlsplit(origin).hostname in ("127.0.0.1", "localhost", "::1")
    direct = [urllib.request.ProxyHandler({})] if local else []
    try:
        with urllib.request.build_opener(*direct).open(request, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read(_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise ConfigError(
                    f"{origin}: the token is refused; set FTAGENT_TOKEN to the one it printed"
                ) from None
            kind = NotThere if error.code in (404, 405) else EngineError
            raise kind(f"{origin}{path}: answered {error.code}; is it an engine?") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise EngineError(f"{origin}: not reachable: {reason}; start it with `ftagent serve`") from None


def build(kind: Any, value: Any) -> Any:
    """`value`, plain JSON, as `kind`: a dataclass or named tuple of ours, a tuple of such, or a plain type.

    The inverse of `metrics.plain`. Fields that `kind` does not know are left out, so a newer gateway can be
    asked. Raises TypeError or ValueError.
    """
    origin = typing.get_origin(kind)
    if origin in (UnionType, typing.Union):
        if value is None:
            return None
        return build(next(option for option in typing.get_args(kind) if option is not type(None)), value)
    if origin is tuple:
        return tuple(build(typing.get_args(kind)[0], item) for item in value)
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} is not an object")
        names = kind._fields if hasattr(kind, "_fields") else [field.name for field in fields(kind)]
        hints = typing.get_type_hints(kind)
        return kind(**{name: build(hints[name], value[name]) for name in names if name in value})
    return value

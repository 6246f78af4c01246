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

PATH = "/v1/ftagent/stats"
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Report:
    """One answer. `age_s`: how long before it the snapshot's step was; its `time` is by the other's clock."""

    health: Health
    model: ModelInfo
    snapshot: Snapshot | None
    age_s: float


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
    origin = url.rstrip("/").removesuffix("/v1")
    request = urllib.request.Request(f"{origin}{path}")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    # A proxy of the user's must not be asked for what is on this machine.
    local = urlsplit(origin).hostname in ("127.0.0.1", "localhost", "::1")
    direct = [urllib.request.ProxyHandler({})] if local else []
    try:
        with urllib.request.build_opener(*direct).open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise ConfigError(
                    f"{origin}: the token is refused; set FTAGENT_TOKEN to the one it printed"
                ) from None
            raise EngineError(f"{origin}{path}: answered {error.code}; is it an ftagent?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise EngineError(f"{origin}: not reachable: {reason}") from None


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

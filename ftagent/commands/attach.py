"""Asks a running engine what it serves, so that an agent can be told."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from ftagent.adapters.base import Target
from ftagent.errors import ConfigError, EngineError
from ftagent.gateway.client import get_json

# Names under which engines tell the context length in /v1/models: ours and vLLM's.
_CONTEXT_KEYS = ("context_length", "max_model_len")


def probe(url: str, token: str | None) -> Target:
    """The model that the engine at `url` serves, and its context length.

    Raises ConfigError for a URL that is none or a token that is refused, EngineError when nothing answers.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"--engine {url}: not a URL; write it like http://127.0.0.1:8765")
    origin = url.rstrip("/").removesuffix("/v1")
    models = _models(origin, token)
    if not models:
        raise EngineError(f"--engine {url}: serves no model")
    context = next((models[0][key] for key in _CONTEXT_KEYS if isinstance(models[0].get(key), int)), None)
    if context is None:
        raise EngineError(f"--engine {url}: /v1/models does not tell the context length of {models[0]['id']}")
    return Target(origin, token or "none", models[0]["id"], context)


def _models(origin: str, token: str | None) -> list[dict[str, Any]]:
    listed = get_json(origin, "/v1/models", token)
    try:
        return list(listed["data"])
    except (KeyError, TypeError) as error:
        raise EngineError(
            f"--engine {origin}: /v1/models is not a list of models; is it an engine?"
        ) from error

"""Asks a running engine what it serves, so that an agent can be told. Plain HTTP, no client library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from ftagent.adapters.base import Target
from ftagent.errors import ConfigError, EngineError
from ftagent.gateway.security import is_loopback

_TIMEOUT_S = 10.0
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
    request = urllib.request.Request(f"{origin}/v1/models")
    # A proxy of the user's must not be asked for what is on this machine.
    direct = [urllib.request.ProxyHandler({})] if is_loopback(urlsplit(origin).hostname or "") else []
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(*direct).open(request, timeout=_TIMEOUT_S) as answer:
            return list(json.load(answer)["data"])
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise ConfigError(
                    f"--engine {origin}: the token is refused; set FTAGENT_TOKEN to the one it printed"
                ) from None
            raise EngineError(
                f"--engine {origin}: /v1/models answered {error.code}; is it an engine?"
            ) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise EngineError(
            f"--engine {origin}: not reachable: {reason}; start it with `ftagent serve`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"--engine {origin}: /v1/models is not a list of models; is it an engine?"
        ) from error

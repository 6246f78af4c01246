"""pi (npm @earendil-works/pi-coding-agent) on an engine of ours, over OpenAI chat completions.

Its state lives in a directory of ours (PI_CODING_AGENT_DIR); the user's ~/.pi is neither read nor written.
Source of the keys: the client's documentation, and recorded requests of version 1.6.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftagent.adapters.base import Adapter, Launch, Order, Target, VolatileSpan, reply_tokens, write_private

_PROVIDER = "ftagent"
_KEY = "PI_ENGINE_KEY"  # the variable that holds the token
_HOUR_MS = 3_600_000


def prepare(order: Order) -> Launch:
    """Write the model's entry and the settings; build the command line.

    Both files are read once, at the start, so another run in the same project does not disturb this one.
    """
    write_private(order.directory / "models.json", {"providers": {_PROVIDER: _provider(order.target)}})
    write_private(order.directory / "settings.json", _settings(order.target))
    variables = {
        "PI_CODING_AGENT_DIR": str(order.directory),
        "PI_OFFLINE": "1",
        "PI_SKIP_VERSION_CHECK": "1",
        "PI_TELEMETRY": "0",
        _KEY: order.target.token,
    }
    return Launch((*order.program, *_arguments(order)), variables)


def _arguments(order: Order) -> list[str]:
    arguments = ["--offline", "--model", f"{_PROVIDER}/{order.target.model}"]
    if order.task is not None and not order.unattended:
        arguments += ["--tools", "read,grep,find,ls"]  # it knows no permissions, so only what changes nothing
    if order.events:
        arguments += ["--mode", "json"]
    arguments += order.arguments
    return arguments if order.task is None else [*arguments, "-p", "--", order.task]


def _provider(target: Target) -> dict[str, Any]:
    model = {
        "id": target.model,
        "reasoning": True,
        "contextWindow": target.context,
        "maxTokens": reply_tokens(target),
    }
    return {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": f"${_KEY}",
        "models": [model],
    }


def _settings(target: Target) -> dict[str, Any]:
    return {
        "defaultProvider": _PROVIDER,
        "defaultModel": target.model,
        "httpIdleTimeoutMs": _HOUR_MS,
        "compaction": {"reserveTokens": reply_tokens(target), "keepRecentTokens": target.context // 4},
        "skills": [f"!{Path.home()}/.agents/skills/**"],  # the user's, which no variable moves
        "enableInstallTelemetry": False,
        "quietStartup": True,
    }


ADAPTER = Adapter(
    name="pi",
    executable="pi",
    setting="pi",
    minimum=(1, 6, 0),
    install="npm install -g @earendil-works/pi-coding-agent@1.6.0",
    protocol="openai-chat",
    owned=("PI_", "OPENAI_", "ANTHROPIC_"),
    homes=("PI_CODING_AGENT_DIR",),
    resume=("--continue",),
    volatile=(VolatileSpan("system", r"<cwd>[^<]*</cwd>", "stands at the end of the system prompt"),),
    prepare=prepare,
    node=(22, 19),
)

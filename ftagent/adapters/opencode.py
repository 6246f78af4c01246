"""opencode (npm opencode-ai) on an engine of ours, over OpenAI chat completions.

Its four XDG directories and its home lie in a directory of ours; the user's own are neither read nor written.
Its configuration is one variable, which outranks every file of a project. Source of the keys: the client's
documentation, and recorded requests of version 1.18.33.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ftagent.adapters.base import Adapter, Launch, Order, Target, VolatileSpan, reply_tokens, write_private

_PROVIDER = "ftagent"
_KEY = "OPENCODE_ENGINE_KEY"  # the variable that holds the token
_HOUR_MS = 3_600_000
_HOMES = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")

# Neither another agent's files nor the network.
_QUIET = (
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_PURE",
)
_ASKED = ("edit", "bash", "webfetch", "external_directory")
_LEAN_ASKED = ("edit", "bash")  # "edit" is writing as well
_PLUGIN = "@opencode-ai/plugin"
_LEAN_PROMPT = """\
You are a coding agent. Work with the tools on the user's project.
When the task is done, say shortly what you did.
"""


def prepare(order: Order) -> Launch:
    """Make the directories, and build the command line."""
    models = order.directory / "models.json"
    write_private(models, {})  # a list of its own, so that it looks none up
    _seed(order.directory / "config" / "opencode")
    variables = {
        **dict.fromkeys(_QUIET, "1"),
        **{name: str(order.directory / name.split("_")[1].lower()) for name in _HOMES},
        # Its own files are looked for in the home as well. Its tools still see the user's HOME.
        "OPENCODE_TEST_HOME": str(order.directory),
        "OPENCODE_MODELS_PATH": str(models),
        "OPENCODE_CONFIG_CONTENT": json.dumps(_config(order)),
        _KEY: order.target.token,
        **_git_settings(),
    }
    return Launch((*order.program, *_arguments(order)), variables)


def _git_settings() -> dict[str, str]:
    """Where git finds the user's settings, if only in the XDG directory that is moved for its tools too."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git" / "config"
    elsewhere = "GIT_CONFIG_GLOBAL" in os.environ or (Path.home() / ".gitconfig").exists()
    return {} if elsewhere or not own.exists() else {"GIT_CONFIG_GLOBAL": str(own)}


def _arguments(order: Order) -> list[str]:
    if order.task is None:
        return list(order.arguments)
    events = ["--format", "json"] if order.events else []
    return ["run", *events, *order.arguments, "--", order.task]


def _config(order: Order) -> dict[str, Any]:
    model = f"{_PROVIDER}/{order.target.model}"
    config: dict[str, Any] = {
        "provider": {_PROVIDER: _provider(order.target)},
        "enabled_providers": [_PROVIDER],
        "model": model,
        "small_model": model,
        "autoupdate": False,
        "share": "disabled",
        "permission": _permission(order),
    }
    agents: dict[str, Any] = {}
    if order.task is not None:
        agents["title"] = {"disable": True}  # nobody sees it
    if order.lean:
        agents["build"] = {"prompt": _LEAN_PROMPT}
    return {**config, "agent": agents}


def _permission(order: Order) -> dict[str, str]:
    """Its own default asks for nothing. Without anyone to answer, what is asked for is denied.

    A tool that is denied altogether is not offered.
    """
    wish = "allow" if order.unattended else "ask"
    if order.lean:
        return {"*": "deny", "read": "allow", **dict.fromkeys(_LEAN_ASKED, wish)}
    return {"*": "allow"} if order.unattended else dict.fromkeys(_ASKED, wish)


def _seed(directory: Path) -> None:
    """Let it find the package for plugins there: else it is fetched, through the user's npm cache."""
    (directory / "node_modules").mkdir(parents=True, exist_ok=True)
    needed = {"dependencies": {_PLUGIN: "*"}}
    write_private(directory / "package.json", needed)
    write_private(directory / "package-lock.json", {"lockfileVersion": 3, "packages": {"": needed}})


def _provider(target: Target) -> dict[str, Any]:
    limit = {"context": target.context, "output": reply_tokens(target)}
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        # A cold prefill of a large model takes minutes; the gateway's chunks keep the stream itself alive.
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{_KEY}}}", "timeout": _HOUR_MS},
        "models": {
            target.model: {"name": target.model, "reasoning": True, "tool_call": True, "limit": limit}
        },
    }


ADAPTER = Adapter(
    name="opencode",
    executable="opencode",
    setting="opencode",
    minimum=(1, 18, 33),
    install="npm install -g opencode-ai@1.18.33",
    protocol="openai-chat",
    owned=("OPENCODE_", "OPENAI_", "ANTHROPIC_"),
    homes=(*_HOMES, "OPENCODE_TEST_HOME"),
    resume=("--continue",),
    volatile=(VolatileSpan("system", r"<env>[\s\S]*?</env>", "stands at the end of the system prompt"),),
    prepare=prepare,
)

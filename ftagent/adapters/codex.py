"""Codex (npm @openai/codex) on an engine of ours, over OpenAI Responses.

Its state lives in a directory of ours (CODEX_HOME); the user's ~/.codex is neither read nor written. All that
the client is told stands on its command line, which outranks every file of a project. Source of the keys:
the client's documentation, and recorded requests of version 0.171.0.
"""

from __future__ import annotations

import json
from pathlib import Path

from ftagent.adapters.base import Adapter, Launch, Order, Target, VolatileSpan, reply_tokens

_PROVIDER = "ftagent"
_KEY = "CODEX_ENGINE_KEY"  # the variable that holds the token
_FIVE_MINUTES_MS = 300_000

# Parts that call home, or that start processes which outlive the agent.
_OFF = ("plugins", "apps", "daemon_auto_start", "remote_plugin", "image_generation")
# Parts that a small model only trips over.
_LEAN_OFF = ("goals", "multi_agent", "view_image", "skill_search", "tool_suggest", "sleep_tool")
_LEAN_INSTRUCTIONS = """\
You are a coding agent. Work with the tool exec_command alone: it runs a shell command in the user's project.
Create a file with exec_command and a command like: printf '%s\\n' 'text' > name.txt
Do not call write_stdin. When the task is done, say shortly what you did.
"""


def prepare(order: Order) -> Launch:
    """Build the command line; with `lean`, write the short instructions that it names."""
    settings = _settings(order.target, order.project)
    if order.lean:
        instructions = order.directory / "lean-instructions.md"
        instructions.write_text(_LEAN_INSTRUCTIONS, encoding="utf-8")
        settings["model_instructions_file"] = _toml(str(instructions))
        settings |= {f"features.{name}": "false" for name in _LEAN_OFF}
    overrides = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    # It reads skills in the home as well. Its tools get the user's HOME back, see the settings.
    variables = {"CODEX_HOME": str(order.directory), "HOME": str(order.directory), _KEY: order.target.token}
    return Launch((*order.program, *overrides, *_arguments(order)), variables)


def _arguments(order: Order) -> list[str]:
    if order.task is None:
        return list(order.arguments)
    arguments = ["exec", "--skip-git-repo-check"]
    if order.unattended:
        arguments.append("--dangerously-bypass-approvals-and-sandbox")
    else:
        # Nobody can be asked, and what would have to be asked for is everything but reading.
        arguments += ["--sandbox", "read-only"]
    if order.events:
        arguments.append("--json")
    return [*arguments, *order.arguments, "--", order.task]


def _settings(target: Target, project: Path) -> dict[str, str]:
    """Keys of config.toml and their values."""
    provider = f"model_providers.{_PROVIDER}"
    words = {
        "model": target.model,
        "model_provider": _PROVIDER,
        f"{provider}.name": _PROVIDER,
        f"{provider}.base_url": f"{target.url}/v1",
        f"{provider}.env_key": _KEY,
        f"{provider}.wire_api": "responses",
        "web_search": "disabled",
    }
    numbers = {
        # An unknown model would be taken for one of OpenAI's.
        "model_context_window": target.context,
        "model_auto_compact_token_limit": target.context - reply_tokens(target),
        f"{provider}.stream_idle_timeout_ms": _FIVE_MINUTES_MS,
    }
    switches = {
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "feedback.enabled": False,
        "tui.show_tooltips": False,  # they are fetched
        "skills.bundled.enabled": False,  # they are about OpenAI's services, and their path is in the prompt
        **{f"features.{name}": False for name in _OFF},
    }
    trusted = f'{{{_toml(str(project))}={{trust_level="trusted"}}}}'
    return {
        **{key: _toml(value) for key, value in (words | numbers | switches).items()},
        "projects": trusted,
        "shell_environment_policy.exclude": _toml([_KEY]),
        "shell_environment_policy.set": f"{{HOME={_toml(str(Path.home()))}}}",
    }


def _toml(value: str | int | list[str]) -> str:
    """TOML, of which JSON's values are a part; but it knows no characters in two escaped halves."""
    return json.dumps(value, ensure_ascii=False)


ADAPTER = Adapter(
    name="codex",
    executable="codex",
    setting="codex",
    minimum=(0, 171, 0),
    install="npm install -g @openai/codex@0.171.0",
    protocol="openai-responses",
    owned=("CODEX_", "OPENAI_"),
    homes=("CODEX_HOME",),
    resume=("resume", "--last"),
    volatile=(
        VolatileSpan("input[1]", r"`r0` = `[^`]+/skills/\.system`", "skills.bundled.enabled=false"),
        VolatileSpan("environment", r"<cwd>[^<]*</cwd>", "stands behind the instructions and the tools"),
        VolatileSpan("environment", r"<current_date>[^<]*</current_date>", "stands behind them as well"),
        VolatileSpan("function_call_output", r"^(Chunk ID|Wall time): .*$", "frozen once it was sent"),
    ),
    prepare=prepare,
)

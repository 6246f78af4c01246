"""Claude Code (npm @anthropic-ai/claude-code) on an engine of ours, over the Anthropic protocol.

Its state lives in a directory of ours (CLAUDE_CONFIG_DIR); the user's ~/.claude is neither read nor written.
Source of the variables: the client's documentation, and recorded requests of version 2.1.332.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ftagent.adapters.base import Adapter, Launch, Order, Target, VolatileSpan, reply_tokens, write_private

# Switches to other providers. Empty means off; a project's own settings file could turn one on.
_PROVIDERS = (
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_CUSTOM_HEADERS",
    "CLAUDE_CODE_OAUTH_TOKEN",
)
_LEAN_TOOLS = "Bash,Read,Write,Edit"
_HOUR_MS = 3_600_000


def prepare(order: Order) -> Launch:
    """Write the run's settings and the first-start seeds; build the command line."""
    environment = _environment(order.target)
    # One file per run: two runs in one project must not see each other's token.
    settings = order.directory / f"run-{os.getpid()}.json"
    write_private(settings, _settings(environment, order.unattended))
    _seed(order.directory / ".claude.json", order.project)
    variables = {**environment, "CLAUDE_CONFIG_DIR": str(order.directory)}
    if order.unattended and os.geteuid() == 0:
        variables["IS_SANDBOX"] = "1"  # as root the client refuses to skip permissions without it
    return Launch((*order.program, *_arguments(order, settings)), variables, (settings,))


def _arguments(order: Order, settings: Path) -> list[str]:
    arguments = ["--settings", str(settings), "--exclude-dynamic-system-prompt-sections"]
    if order.unattended:
        arguments.append("--dangerously-skip-permissions")
    if order.lean:
        arguments += ["--tools", _LEAN_TOOLS]
    if order.events:
        arguments += ["--output-format", "stream-json", "--verbose"]
    arguments += order.arguments
    if order.task is not None:
        arguments += ["-p", "--", order.task]
    return arguments


def _environment(target: Target) -> dict[str, str]:
    """What the client is told of the engine: where, which model, how long; and to stay quiet and offline."""
    models = dict.fromkeys(
        (
            "ANTHROPIC_MODEL",
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "ANTHROPIC_DEFAULT_FABLE_MODEL",
            "CLAUDE_CODE_SUBAGENT_MODEL",
        ),
        target.model,
    )
    quiet = dict.fromkeys(
        (
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL",
            "CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY",
            "DISABLE_AUTOUPDATER",
            "DISABLE_TELEMETRY",
            "DISABLE_ERROR_REPORTING",
        ),
        "1",
    )
    return {
        **dict.fromkeys(_PROVIDERS, ""),
        **models,
        **quiet,
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.token,
        # An unknown model is taken for one with a million tokens, and would never be compacted.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(reply_tokens(target)),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        # A cold prefill of a large model takes minutes; the gateway's pings keep the stream itself alive.
        "API_TIMEOUT_MS": str(_HOUR_MS),
    }


def _settings(environment: dict[str, str], unattended: bool) -> dict[str, Any]:
    """Settings that outrank the project's own files, which could name another server."""
    home = Path.home()
    return {
        "env": environment,
        # The client reads CLAUDE.md in every directory above the project, so in the user's home too.
        "claudeMdExcludes": [f"{home}/.claude/**"],
        "skipDangerousModePermissionPrompt": unattended,
        # The client's own default lets the model judge which calls are safe. A small one must not.
        "permissions": {"defaultMode": "bypassPermissions" if unattended else "manual"},
        # Else it writes a URL handler into the user's home.
        "disableDeepLinkRegistration": "disable",
    }


def _seed(file: Path, project: Path) -> None:
    """Answer the questions of a first start, which would otherwise ask for an account. Keep what is there."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        state = {}
    state["hasCompletedOnboarding"] = True
    state.setdefault("theme", "dark-ansi")
    state.setdefault("projects", {}).setdefault(str(project), {})["hasTrustDialogAccepted"] = True
    write_private(file, state)


ADAPTER = Adapter(
    name="claude-code",
    executable="claude",
    setting="claude",
    minimum=(2, 1, 332),
    install="npm install -g @anthropic-ai/claude-code@2.1.332",
    protocol="anthropic",
    owned=("ANTHROPIC_", "CLAUDE_", "CLAUDECODE"),
    homes=("CLAUDE_CONFIG_DIR",),
    resume=("--continue",),
    volatile=(
        VolatileSpan("system[0]", r"^x-anthropic-billing-header:.*$", "CLAUDE_CODE_ATTRIBUTION_HEADER=0"),
        VolatileSpan(
            "system", r"persistent file-based memory at `[^`]+`", "--exclude-dynamic-system-prompt-sections"
        ),
        VolatileSpan("messages[0]", r"# gitStatus\n", "stands behind the system prompt and the tools"),
    ),
    prepare=prepare,
    # The client knows terminals by name: it asks only these for keys like Shift+Tab and Shift+Enter. Its
    # full-screen mode scrolls by itself, and writes a third as much.
    pane={"TERM_PROGRAM": "ghostty", "CLAUDE_CODE_NO_FLICKER": "1"},
)

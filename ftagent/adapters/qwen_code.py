"""Qwen Code (npm @qwen-code/qwen-code) on an engine of ours, over OpenAI chat completions.

Its state lives in a directory of ours (QWEN_HOME); the user's ~/.qwen is neither read nor written. Source of
the keys: the client's documentation, and recorded requests of version 0.24.4.
"""

from __future__ import annotations

from typing import Any

from ftagent.adapters.base import Adapter, Launch, Order, VolatileSpan, reply_tokens, write_private

_HOUR_MS = 3_600_000
# Its tools for files refuse relative paths, which is what a small model gives.
_LEAN_TOOLS = ("run_shell_command",)
# Tools that the list of wanted ones does not keep out.
_LEAN_OFF = tuple(
    """
    agent get_goal update_goal list_agents skill tool_call tool_search
    enter_worktree exit_worktree record_artifact report_findings send_message task_stop
    """.split()
)
_LEAN_PROMPT = """\
You are a coding agent. Work with the tools on the user's project.
When the task is done, say shortly what you did.
"""


def prepare(order: Order) -> Launch:
    """Write the settings; build the command line and the environment."""
    write_private(order.directory / "settings.json", _settings(order))
    target = order.target
    variables = {
        "QWEN_HOME": str(order.directory),
        "QWEN_RUNTIME_DIR": str(order.directory),
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.token,
        "OPENAI_MODEL": target.model,
        "QWEN_CODE_MAX_OUTPUT_TOKENS": str(reply_tokens(target)),
        # A cold prefill of a large model takes minutes, and this client gives up after two.
        "QWEN_CODE_API_TIMEOUT_MS": str(_HOUR_MS),
        "QWEN_STREAM_IDLE_TIMEOUT_MS": str(_HOUR_MS),
        "QWEN_CODE_NO_RELAUNCH": "1",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",  # ftagent says it itself
    }
    return Launch((*order.program, *_arguments(order)), variables)


def _arguments(order: Order) -> list[str]:
    arguments = ["--approval-mode", "yolo" if order.unattended else "default"]
    if order.events:
        arguments += ["--output-format", "stream-json"]
    if order.lean:
        arguments += ["--system-prompt", _LEAN_PROMPT]
    arguments += order.arguments
    if order.task is None:
        return arguments
    # First, so that no flag with a list takes it. It knows no `--`: a task that looks like a flag is set off.
    return [" " + order.task if order.task.startswith("-") else order.task, *arguments]


def _settings(order: Order) -> dict[str, Any]:
    """Signed in, trusted and quiet: no side requests, no telemetry, no updates."""
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "ui": {"enableFollowupSuggestions": False},
        # The user's lie in ~/.agents, which no variable moves.
        "skills": {"disabledLevels": ["user", "bundled", "extension"] if order.lean else ["user"]},
        "model": {
            "name": order.target.model,
            "generationConfig": {"contextWindowSize": order.target.context, "timeout": _HOUR_MS},
        },
    }
    if order.lean:
        settings["tools"] = {"core": list(_LEAN_TOOLS), "exclude": list(_LEAN_OFF)}
    return settings


ADAPTER = Adapter(
    name="qwen-code",
    executable="qwen",
    setting="qwen",
    minimum=(0, 24, 4),
    install="npm install -g @qwen-code/qwen-code@0.24.4",
    protocol="openai-chat",
    owned=("QWEN_", "OPENAI_", "GEMINI_", "GOOGLE_", "DASHSCOPE_"),
    homes=("QWEN_HOME", "QWEN_RUNTIME_DIR"),
    resume=("--continue",),
    volatile=(
        VolatileSpan("system", r"(?:^git: .*\n)+", "stands near the end of the system prompt"),
        VolatileSpan(
            "messages[1]",
            r"Here is the folder structure of[\s\S]*?(?=</system-reminder>)",
            "stands behind system prompt and tools",
        ),
        VolatileSpan(
            "messages[1]", r"(?:Today's|The current) date is:? [^\n]*", "leaves its message on resume"
        ),
    ),
    prepare=prepare,
    node=(22,),
)

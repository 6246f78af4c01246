"""Any other program: `ftagent run custom -- CMD`, told of the engine by the variables that clients read.

Its keys are scrubbed like those of other agents. Its own configuration is its own business: nothing is known
of where it is.
"""

from __future__ import annotations

from ftagent.adapters.base import Adapter, Launch, Order, reply_tokens
from ftagent.errors import ConfigError

_TASK = "{task}"


def prepare(order: Order) -> Launch:
    """Fill the marks in the arguments; set the variables of both protocols. Raises ConfigError."""
    target = order.target
    marks = {
        _TASK: order.task or "",
        "{model}": target.model,
        "{url}": target.url,
        "{context}": str(target.context),
    }
    if order.task is not None and not order.unattended:
        raise ConfigError("--ask: how to make a program of your own ask is not known; leave it out")
    if order.task is not None and not any(_TASK in argument for argument in order.arguments):
        raise ConfigError(f"-p TASK: write {_TASK} among the arguments behind --, where the program takes it")
    if order.task is None and any(_TASK in argument for argument in order.arguments):
        raise ConfigError(f"{_TASK} among the arguments needs -p TASK")
    variables = {
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_BASE": f"{target.url}/v1",
        "OPENAI_API_KEY": target.token,
        "OPENAI_MODEL": target.model,
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_API_KEY": target.token,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_SMALL_FAST_MODEL": target.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(reply_tokens(target)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its library looks prices up
    }
    return Launch((*order.program, *(_filled(argument, marks) for argument in order.arguments)), variables)


def _filled(argument: str, marks: dict[str, str]) -> str:
    """The marks are looked for in what the user wrote, never in what takes their place."""
    for mark, value in marks.items():
        if mark in argument:
            before, _, after = argument.partition(mark)
            return _filled(before, marks) + value + _filled(after, marks)
    return argument


ADAPTER = Adapter(
    name="custom",
    executable="",
    setting="",
    minimum=(),
    install="ftagent run custom -- CMD ARGS",
    protocol="openai-chat",
    owned=("OPENAI_", "ANTHROPIC_"),
    homes=(),
    resume=(),
    volatile=(),
    prepare=prepare,
)

"""OpenAI Responses requests: the wire model, and its translation.

https://platform.openai.com/docs/api-reference/responses/create. What could change the reply is honoured or
refused by its name. Hints without a switch in local models (verbosity, service tier) and
tools that run on a server are accepted and have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from ftagent.conversation import Conversation, Message, Text, ToolChoice, ToolSpec
from ftagent.engine.api import GenerateRequest
from ftagent.errors import BadRequest
from ftagent.gateway.wire_common import check_choice, degree_of, distinct, schema_text
from ftagent.gateway.wire_openai_common import (
    MAX_TOP_LOGPROBS,
    Sampled,
    Switched,
    Wire,
    free_form_tool,
    refuse_common,
    sampling_of,
    thinking_wanted,
)
from ftagent.gateway.wire_responses_items import (
    TOOL_SEARCH,
    Item,
    Tool,
    flat_tools,
    joined_name,
    messages_of,
)

SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

# What the API can include of tools that run on its servers. None run here, so there is nothing to leave out.
_HOSTED_INCLUDES = frozenset(
    """
    file_search_call.results web_search_call.results web_search_call.action.sources
    message.input_image.image_url computer_call_output.output.image_url code_interpreter_call.outputs
    """.split()
)
# Fields that would need what is not here: storage of others, workers of others, or another prompt.
_UNSUPPORTED = ("conversation", "prompt", "context_management", "moderation")

CallKind = Literal["function", "custom", "tool_search"]


class Called(NamedTuple):
    """A tool as the client knows it, whatever the model calls it."""

    kind: CallKind
    name: str
    namespace: str | None = None


class Reasoning(Wire):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its name in the past


class TextFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    name: str = "reply"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Wire):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(Wire):
    include_obfuscation: bool | None = False


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class InputRequest(Switched):
    """The part of a request that makes the prompt; all that counting takes."""

    model: str = Field("", min_length=1)
    input: Annotated[list[Item], BeforeValidator(_as_items)] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None
    prompt: Any = None


class ResponsesRequest(InputRequest, Sampled):
    model: str = Field(min_length=1)
    max_output_tokens: int | None = Field(None, ge=1)
    include: list[str] | None = None
    store: bool | None = True
    background: bool | None = False
    stream_options: StreamOptions | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    metadata: dict[str, str] | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    safety_identifier: str | None = None
    user: str | None = None
    context_management: Any = None
    moderation: Any = None


class Understood(NamedTuple):
    """A request in the engine's words, and how to say the reply in the client's.

    `called` has the client's own name for each name that the model knows. `items` are those of the whole
    conversation, the ones that were stored included.
    """

    conversation: Conversation
    called: Mapping[str, Called]
    items: tuple[Item, ...]


def understand(request: InputRequest, asked: Sequence[Item], past: Sequence[Item] = ()) -> Understood:
    """`asked`: the input without references; `past`: the items of the response that it continues.

    Raises BadRequest with the field's name.
    """
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise BadRequest("is not supported: leave it out", name)
    if request.truncation == "auto":
        raise BadRequest("prompts are never cut: leave it out, or say 'disabled'", "truncation")
    items = (*past, *asked)
    if not items:
        raise BadRequest("is empty: send what the user says", "input")
    offered = _all_offered(request.tools or (), items)
    choice, tools = _choice(request, offered)
    messages = messages_of(items, len(past))
    if request.instructions:
        messages = (Message("system", (Text(request.instructions),)), *messages)
    effort = request.reasoning.effort if request.reasoning else None
    thinking = thinking_wanted(effort, request)
    conversation = Conversation(messages, tools, choice, thinking, degree_of(effort))
    return Understood(conversation, {name: called for name, (_, called) in offered.items()}, items)


def generate_request(
    request: ResponsesRequest, conversation: Conversation, reply_id: str, session: str = ""
) -> GenerateRequest:
    """The engine's request. `session` is what the headers say. Raises BadRequest with the field's name."""
    refuse_common(request)
    _refuse_unsupported(request)
    sampling = sampling_of(
        request,
        max_tokens=request.max_output_tokens or request.max_tokens,
        top_logprobs=(request.top_logprobs or 0) if LOGPROBS in (request.include or ()) else None,
        json_schema=_schema(request.text.format if request.text else None),
    )
    return GenerateRequest(conversation, sampling, reply_id, session or request.prompt_cache_key or "")


def settings_of(request: ResponsesRequest) -> dict[str, Any]:
    """What every object of the reply repeats of its request; of the tools, those that are offered."""
    form = request.text.format if request.text else None
    reasoning = request.reasoning or Reasoning()
    repeated: dict[str, Any] = {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": summary_wanted(request)},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {
            "format": form.model_dump(by_alias=True, exclude_unset=True) if form else {"type": "text"},
            "verbosity": (request.text and request.text.verbosity) or "medium",
        },
        "tool_choice": request.tool_choice or "auto",
        "tools": [tool for tool in map(_repeated, request.tools or ()) if tool],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }
    return {name: _finite(value) for name, value in repeated.items()}


def _finite(value: Any) -> Any:
    """JSON as it was sent, but for numbers that JSON cannot say, like 1e999: they are null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def summary_wanted(request: InputRequest) -> str | None:
    """The kind of summary that the client asks for. There is one kind: the reasoning itself."""
    reasoning = request.reasoning or Reasoning()
    return reasoning.generate_summary if reasoning.summary in (None, "none") else reasoning.summary


def _repeated(tool: Tool) -> dict[str, Any] | None:
    if tool.type == "namespace":
        inner = [repeated for repeated in map(_repeated, tool.tools or ()) if repeated]
        return {"type": tool.type, "name": tool.name, "description": tool.description or "", "tools": inner}
    return tool.model_dump(exclude_unset=True) if _call_kind(tool) else None


def _refuse_unsupported(request: ResponsesRequest) -> None:
    for name in _UNSUPPORTED:
        if getattr(request, name) is not None:
            raise BadRequest("is not supported: leave it out", name)
    if request.background:
        raise BadRequest("nothing runs in the background: stream the reply, or wait for it", "background")
    if request.stream_options and request.stream_options.include_obfuscation:
        raise BadRequest("nothing is padded here: leave it out", "stream_options.include_obfuscation")
    for index, name in enumerate(request.include or ()):
        if name not in (SEALED, LOGPROBS) and name not in _HOSTED_INCLUDES:
            raise BadRequest(f"{name!r} is not known", f"include.{index}")
    if request.top_logprobs and LOGPROBS not in (request.include or ()):
        raise BadRequest(f"needs {LOGPROBS!r} in include", "top_logprobs")


def _offered(tools: Iterable[Tool], path: str) -> Iterator[tuple[str, tuple[ToolSpec, Called]]]:
    """Each tool that the client runs, by the name the model knows it by.

    Tools that run on a server, and tools of unknown types, are left out: nobody could run them here.
    """
    for index, (namespace, tool) in enumerate(flat_tools(tools)):
        kind = _call_kind(tool)
        if kind is None:
            continue
        name = tool.name or (TOOL_SEARCH if kind == "tool_search" else "")
        if not name:
            raise BadRequest("a tool needs a name", f"{path}.{index}.name")
        known = joined_name(namespace, name)
        if kind == "custom":
            form = tool.format
            grammar = (form.syntax, form.definition) if form else ("", "")
            spec = free_form_tool(known, tool.description, *grammar)
        else:
            parameters = tool.parameters or {"type": "object", "properties": {}}
            spec = ToolSpec(known, tool.description or "", parameters)
        yield known, (spec, Called(kind, name, namespace))


def _all_offered(tools: Sequence[Tool], items: Sequence[Item]) -> dict[str, tuple[ToolSpec, Called]]:
    """The tools of the request, then those that its items brought in later."""
    given = list(_offered(tools, "tools"))
    distinct(spec for _, (spec, _) in given)
    offered = dict(given)
    for name, found in _offered((tool for item in items for tool in item.tools or ()), "input"):
        offered.setdefault(name, found)
    return offered


def _call_kind(tool: Tool) -> CallKind | None:
    if tool.type == "function":
        return "function"
    if tool.type == "custom":
        return "custom"
    return "tool_search" if tool.type == "tool_search" and tool.execution == "client" else None


def _choice(
    request: InputRequest, offered: Mapping[str, tuple[ToolSpec, Called]]
) -> tuple[ToolChoice, tuple[ToolSpec, ...]]:
    """The choice, and the tools that it leaves."""
    tools = tuple(spec for spec, _ in offered.values())
    parallel = request.parallel_tool_calls is not False
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return check_choice(ToolChoice(choice or "auto", None, parallel), tools), tools
    kind = choice.get("type")
    if kind in ("function", "custom"):
        named = ToolChoice("named", _named(choice, offered), parallel)
        return check_choice(named, tools), tools
    mode, allowed = choice.get("mode"), choice.get("tools")
    if kind == "allowed_tools" and mode in ("auto", "required") and isinstance(allowed, list):
        names = {_named(each, offered) for each in allowed if isinstance(each, dict)}
        left = tuple(tool for tool in tools if tool.name in names)
        return check_choice(ToolChoice(mode, None, parallel), left), left
    raise BadRequest(f"type {kind!r} is not supported: name one function", "tool_choice")


def _named(choice: Mapping[str, Any], offered: Mapping[str, tuple[ToolSpec, Called]]) -> str:
    """The model's name of the tool that the client means; the client's own where there is none."""
    wanted, namespace = choice.get("name"), choice.get("namespace")
    for known, (_, called) in offered.items():
        if called.name == wanted and namespace in (None, called.namespace):
            return known
    return str(wanted)


def _schema(form: TextFormat | None) -> str | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema_text({"type": "object"})
    if form.schema_ is None:
        raise BadRequest("is missing", "text.format.schema")
    return schema_text(form.schema_)

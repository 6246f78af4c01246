"""OpenAI chat and text completion requests: the wire models, and their translation.

https://platform.openai.com/docs/api-reference/chat/create, with `reasoning_content`, the field that local
servers share. `wire_openai_common` has what these requests share with the Responses API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from ftagent.conversation import Block, Conversation, Message, Thinking, ToolChoice, ToolResult, ToolSpec
from ftagent.engine.api import GenerateRequest
from ftagent.errors import BadRequest
from ftagent.gateway.wire_common import (
    check_choice,
    degree_of,
    distinct,
    join_results,
    schema_text,
    tool_call,
)
from ftagent.gateway.wire_openai_common import (
    MAX_TOP_LOGPROBS,
    Grammar,
    Parts,
    Sampled,
    Switched,
    ThinkingSwitch,
    Wire,
    content_of,
    free_form_tool,
    refuse_common,
    sampling_of,
    thinking_wanted,
)

_TEXT_DEFAULT_TOKENS = 16  # the API's default for /v1/completions


class CalledFunction(Wire):
    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(Wire):
    name: str
    input: str = ""


class WireCall(Wire):
    id: str = ""
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class ChatMessage(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under its other common name
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None


class FunctionSpec(Wire):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CustomFormat(Wire):
    grammar: Grammar | None = None


class CustomSpec(Wire):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class ChatTool(Wire):
    type: str
    function: FunctionSpec | None = None
    custom: CustomSpec | None = None


class JsonSchemaFormat(Wire):
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(Wire):
    include_usage: bool | None = False


class ChatRequest(Sampled, Switched):
    stream_options: StreamOptions | None = None
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    reasoning: ThinkingSwitch | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None


class CompletionRequest(Sampled):
    stream_options: StreamOptions | None = None
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = False
    suffix: str | None = None


def custom_tools(request: ChatRequest) -> frozenset[str]:
    """Names of the tools whose calls carry free-form text."""
    return frozenset(
        tool.custom.name for tool in request.tools or [] if tool.type == "custom" and tool.custom
    )


def chat_request(request: ChatRequest, reply_id: str, session: str = "") -> GenerateRequest:
    """The engine's request. `session` is what the headers say. Raises BadRequest with the field's name."""
    refuse_common(request)
    for name in ("audio", "functions", "function_call", "web_search_options"):
        if getattr(request, name) is not None:
            raise BadRequest("is not supported: leave it out", name)
    if request.modalities and request.modalities != ["text"]:
        raise BadRequest("only text can be produced", "modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise BadRequest("needs logprobs to be true", "top_logprobs")
    sampling = sampling_of(
        request,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        json_schema=_schema(request.response_format),
    )
    session = session or request.prompt_cache_key or ""
    return GenerateRequest(_conversation(request), sampling, reply_id, session)


def completion_request(request: CompletionRequest, reply_id: str, vocab: int) -> GenerateRequest:
    """The engine's request for a raw prompt; token ids must lie below `vocab`. Raises BadRequest."""
    refuse_common(request)
    if request.echo:
        raise BadRequest("the prompt cannot be echoed: leave it out", "echo")
    if request.suffix:
        raise BadRequest("text cannot be inserted before a suffix: leave it out", "suffix")
    sampling = sampling_of(
        request,
        max_tokens=request.max_tokens or _TEXT_DEFAULT_TOKENS,
        top_logprobs=request.logprobs,
        json_schema=None,
    )
    return GenerateRequest(
        _raw_prompt(request.prompt, vocab), sampling, reply_id, request.prompt_cache_key or ""
    )


def _raw_prompt(
    prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], vocab: int
) -> str | list[int]:
    """The one prompt of a request, which may stand inside a list of its own."""
    if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
        if len(prompt) != 1:
            raise BadRequest("only one prompt is supported in a request", "prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    ids: list[int] = []
    for token in prompt:
        if not isinstance(token, int) or not 0 <= token < vocab:
            raise BadRequest(f"{token!r} is not a token id: ids are 0 to {vocab - 1}", "prompt")
        ids.append(token)
    if not ids:
        raise BadRequest("is empty", "prompt")
    return ids


def _conversation(request: ChatRequest) -> Conversation:
    messages = [_message(message, f"messages.{index}") for index, message in enumerate(request.messages)]
    tools = distinct(_tools(request.tools or []))
    choice = check_choice(_choice(request), tools)
    effort = request.reasoning_effort or (request.reasoning.effort if request.reasoning else None)
    thinking = thinking_wanted(effort, request)
    return Conversation(join_results(messages), tools, choice, thinking, degree_of(effort))


def _message(message: ChatMessage, path: str) -> Message:
    content = tuple(content_of(message.content or [], f"{path}.content"))
    match message.role:
        case "system" | "developer":
            return Message("system", content)
        case "user":
            return Message("user", content)
        case "tool":
            return Message("tool", (ToolResult(message.tool_call_id or "", content),))
    reasoning = message.reasoning_content or message.reasoning
    thinking: tuple[Block, ...] = (Thinking(reasoning),) if reasoning else ()
    return Message("assistant", (*thinking, *content, *_calls(message.tool_calls or [], path)))


def _calls(calls: Sequence[WireCall], path: str) -> Iterator[Block]:
    for index, call in enumerate(calls):
        if call.function is not None:
            yield tool_call(call.id, call.function.name, call.function.arguments)
        elif call.custom is not None:
            yield tool_call(call.id, call.custom.name, {"input": call.custom.input})
        else:
            raise BadRequest("has neither function nor custom", f"{path}.tool_calls.{index}")


def _tools(tools: Sequence[ChatTool]) -> Iterator[ToolSpec]:
    """Functions and free-form tools. Tools that run on a server are left out: nobody could run them here."""
    for index, tool in enumerate(tools):
        if tool.type == "function":
            if tool.function is None:
                raise BadRequest("is missing", f"tools.{index}.function")
            parameters = tool.function.parameters or {"type": "object", "properties": {}}
            yield ToolSpec(tool.function.name, tool.function.description or "", parameters)
        elif tool.type == "custom":
            if tool.custom is None:
                raise BadRequest("is missing", f"tools.{index}.custom")
            grammar = (tool.custom.format and tool.custom.format.grammar) or Grammar()
            yield free_form_tool(
                tool.custom.name, tool.custom.description, grammar.syntax, grammar.definition
            )


def _choice(request: ChatRequest) -> ToolChoice:
    parallel = request.parallel_tool_calls is not False
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return ToolChoice(choice or "auto", None, parallel)
    kind = choice.get("type")
    named = choice.get(kind) if kind in ("function", "custom") else None
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str):
        raise BadRequest(f"type {kind!r} is not supported: name one function", "tool_choice")
    return ToolChoice("named", name, parallel)


def _schema(form: ResponseFormat | None) -> str | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema_text({"type": "object"})
    if form.json_schema is None:
        raise BadRequest("is missing", "response_format.json_schema")
    return schema_text(form.json_schema.schema_)

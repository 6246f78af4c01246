"""OpenAI chat and text completion requests: the wire models, and their translation.

https://platform.openai.com/docs/api-reference/chat/create, with the extras that local servers share (top_k,
min_p, repetition_penalty, ignore_eos, reasoning_content). A field that would change the reply and is not
supported is refused by its name; all other unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ftagent.conversation import (
    Block,
    Conversation,
    Image,
    Message,
    Text,
    Thinking,
    ToolChoice,
    ToolResult,
    ToolSpec,
)
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.errors import BadRequest
from ftagent.gateway.wire_common import check_choice, distinct, join_results, schema_text, tool_call

_TEXT_DEFAULT_TOKENS = 16  # the API's default for /v1/completions
_MAX_TOP_LOGPROBS = 20

# Arguments of a free-form tool, as the model sees and fills them.
CUSTOM_INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ImageUrl(_Wire):
    url: str


class Part(_Wire):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: (
        Annotated[ImageUrl, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)] | None
    ) = None


Parts = Annotated[list[Part], BeforeValidator(_as_parts)]


class CalledFunction(_Wire):
    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(_Wire):
    name: str
    input: str = ""


class WireCall(_Wire):
    id: str = ""
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class ChatMessage(_Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under its other common name
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None


class FunctionSpec(_Wire):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(_Wire):
    type: str
    function: FunctionSpec | None = None
    custom: FunctionSpec | None = None


class JsonSchemaFormat(_Wire):
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(_Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(_Wire):
    include_usage: bool | None = False


class ThinkingSwitch(_Wire):
    """The ways in which clients of local servers turn thinking off."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    effort: str | None = None
    type: str | None = None


class _Sampled(_Wire):
    model: str = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list)] | None = None
    seed: int | None = None
    ignore_eos: bool | None = False
    prompt_cache_key: str | None = None
    n: int | None = None
    best_of: int | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None


class ChatRequest(_Sampled):
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=_MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    reasoning: ThinkingSwitch | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: ThinkingSwitch | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None


class CompletionRequest(_Sampled):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=_MAX_TOP_LOGPROBS)
    echo: bool | None = False
    suffix: str | None = None


def custom_tools(request: ChatRequest) -> frozenset[str]:
    """Names of the tools whose calls carry free-form text."""
    return frozenset(
        tool.custom.name for tool in request.tools or [] if tool.type == "custom" and tool.custom
    )


def chat_request(request: ChatRequest, reply_id: str) -> GenerateRequest:
    """The engine's request. Raises BadRequest with the field's name."""
    _refuse_common(request)
    for name in ("audio", "functions", "function_call", "web_search_options"):
        if getattr(request, name) is not None:
            raise BadRequest("is not supported: leave it out", name)
    if request.modalities and request.modalities != ["text"]:
        raise BadRequest("only text can be produced", "modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise BadRequest("needs logprobs to be true", "top_logprobs")
    sampling = _sampling(
        request,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        json_schema=_schema(request.response_format),
    )
    return GenerateRequest(_conversation(request), sampling, reply_id, request.prompt_cache_key or "")


def completion_request(request: CompletionRequest, reply_id: str, vocab: int) -> GenerateRequest:
    """The engine's request for a raw prompt; token ids must lie below `vocab`. Raises BadRequest."""
    _refuse_common(request)
    if request.echo:
        raise BadRequest("the prompt cannot be echoed: leave it out", "echo")
    if request.suffix:
        raise BadRequest("text cannot be inserted before a suffix: leave it out", "suffix")
    sampling = _sampling(
        request,
        max_tokens=request.max_tokens or _TEXT_DEFAULT_TOKENS,
        top_logprobs=request.logprobs,
        json_schema=None,
    )
    return GenerateRequest(
        _raw_prompt(request.prompt, vocab), sampling, reply_id, request.prompt_cache_key or ""
    )


def _refuse_common(request: _Sampled) -> None:
    for name in ("n", "best_of"):
        if getattr(request, name) not in (None, 1):
            raise BadRequest("only 1 is supported: one reply for each request", name)
    if request.logit_bias:
        raise BadRequest("is not supported: leave it out", "logit_bias")
    if request.min_tokens and not request.ignore_eos:
        raise BadRequest("is not supported without ignore_eos: leave it out", "min_tokens")


def _sampling(
    request: _Sampled, *, max_tokens: int | None, top_logprobs: int | None, json_schema: str | None
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=None if request.top_k is None else max(0, request.top_k),  # -1 and 0 both mean all
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty or 1.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        stop=tuple(request.stop or ()),
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        top_logprobs=top_logprobs,
        json_schema=json_schema,
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
    return Conversation(join_results(messages), tools, choice, _thinking(request))


def _message(message: ChatMessage, path: str) -> Message:
    content = tuple(_content(message.content or [], f"{path}.content"))
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


def _content(parts: Sequence[Part], path: str) -> Iterator[Text | Image]:
    for index, part in enumerate(parts):
        match part.type:
            case "text" | "refusal" | "input_text" | "output_text":
                if words := part.text or part.refusal:
                    yield Text(words)
            case "image_url" if part.image_url is not None:
                yield _image(part.image_url.url)
            case "input_audio" | "file" | "video_url":
                yield Text(f"[{part.type} left out: this model reads text only]")
            case _:
                raise BadRequest(f"parts of type {part.type!r} are not supported", f"{path}.{index}.type")


def _image(url: str) -> Image:
    """A data URL is taken apart into its type and its base64 text; any other URL is kept as it is."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma):
        return Image("", url)
    return Image(head.removeprefix("data:").partition(";")[0], data)


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
            yield ToolSpec(tool.custom.name, tool.custom.description or "", CUSTOM_INPUT_SCHEMA)


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


def _thinking(request: ChatRequest) -> bool | None:
    """The switch in the API's own words first, then in those that local servers understand."""
    efforts = (request.reasoning_effort, request.reasoning and request.reasoning.effort)
    for effort in efforts:
        if effort:
            return effort != "none"
    if request.thinking and request.thinking.type:
        return request.thinking.type != "disabled"
    template = request.chat_template_kwargs or ThinkingSwitch()
    told = (request.enable_thinking, template.enable_thinking, template.thinking)
    return next((value for value in told if value is not None), None)


def _schema(form: ResponseFormat | None) -> str | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema_text({"type": "object"})
    if form.json_schema is None:
        raise BadRequest("is missing", "response_format.json_schema")
    return schema_text(form.json_schema.schema_)

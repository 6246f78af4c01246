"""What OpenAI's requests share: sampling fields, content parts, free-form tools, the thinking switch.

https://platform.openai.com/docs/api-reference, with the extras that local servers share (top_k, min_p,
repetition_penalty, ignore_eos). A field that would change the reply and is not supported is refused by its
name; all other unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ftagent.conversation import Image, Text, ToolSpec
from ftagent.engine.api import SamplingParams
from ftagent.errors import BadRequest

MAX_TOP_LOGPROBS = 20

# Arguments of a free-form tool, as the model sees and fills them.
CUSTOM_INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


def as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ImageUrl(Wire):
    url: str


class Part(Wire):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: (
        Annotated[ImageUrl, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)] | None
    ) = None


Parts = Annotated[list[Part], BeforeValidator(as_parts)]


class Grammar(Wire):
    """What the text of a free-form tool has to look like."""

    syntax: str = ""
    definition: str = ""


class ThinkingSwitch(Wire):
    """The ways in which clients of local servers turn thinking off."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    effort: str | None = None
    type: str | None = None


class Switched(Wire):
    """Where clients of local servers put the thinking switch, besides the API's own effort."""

    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: ThinkingSwitch | None = None


class Sampled(Wire):
    """How tokens are chosen, in the words of every OpenAI request and of local servers."""

    model: str = Field(min_length=1)
    stream: bool | None = False
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


def content_of(parts: Sequence[Part], path: str) -> Iterator[Text | Image]:
    """Text and pictures. A part that cannot be read becomes a short note; an unknown one is refused."""
    for index, part in enumerate(parts):
        match part.type:
            case "text" | "refusal" | "input_text" | "output_text" | "reasoning_text" | "summary_text":
                if words := part.text or part.refusal:
                    yield Text(words)
            case "image_url" | "input_image" if part.image_url is not None:
                yield _image(part.image_url.url)
            case "input_audio" | "file" | "video_url" | "input_image" | "input_file":
                yield Text(f"[{part.type} left out: this model reads text only]")
            case _:
                raise BadRequest(f"parts of type {part.type!r} are not supported", f"{path}.{index}.type")


def _image(url: str) -> Image:
    """A data URL is taken apart into its type and its base64 text; any other URL is kept as it is."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma):
        return Image("", url)
    return Image(head.removeprefix("data:").partition(";")[0], data)


def free_form_tool(name: str, description: str | None, syntax: str = "", definition: str = "") -> ToolSpec:
    """A tool that takes text instead of JSON. A grammar for that text is told to the model, not enforced."""
    words = description or ""
    if definition:
        words += f"\nThe input must match this {syntax} grammar:\n{definition}"
    return ToolSpec(name, words.lstrip("\n"), CUSTOM_INPUT_SCHEMA)


def thinking_wanted(effort: str | None, request: Switched) -> bool | None:
    """The switch in the API's own words first, then in those that local servers understand."""
    if effort:
        return effort != "none"
    if request.thinking and request.thinking.type:
        return request.thinking.type != "disabled"
    template = request.chat_template_kwargs or ThinkingSwitch()
    told = (request.enable_thinking, template.enable_thinking, template.thinking)
    return next((value for value in told if value is not None), None)


def refuse_common(request: Sampled) -> None:
    """Raise BadRequest for a sampling field that cannot be honoured."""
    for name in ("n", "best_of"):
        if getattr(request, name) not in (None, 1):
            raise BadRequest("only 1 is supported: one reply for each request", name)
    if request.logit_bias:
        raise BadRequest("is not supported: leave it out", "logit_bias")
    if request.min_tokens and not request.ignore_eos:
        raise BadRequest("is not supported without ignore_eos: leave it out", "min_tokens")


def sampling_of(
    request: Sampled, *, max_tokens: int | None, top_logprobs: int | None, json_schema: str | None
) -> SamplingParams:
    """The engine's parameters; the fields whose names differ between requests are given beside it."""
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

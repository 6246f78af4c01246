"""How a refusal or a fault looks on the wire, in each protocol's own shape.

Knows no engine and no sockets: an exception goes in, a status, a body and headers come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ftagent.errors import BadRequest, EngineStopped, PromptTooLong, QueueFull

Protocol = Literal["anthropic", "openai", "openai-responses"]

# Anthropic's error type per status, https://platform.claude.com/docs/en/api/errors
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}


class Refused(BadRequest):
    """A request refused before it reaches the engine, with its HTTP status."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message, field)
        self.status = status


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, before it takes a protocol's shape. `code` is OpenAI's machine-readable word."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def fault_of(error: Exception, protocol: Protocol) -> Fault:
    """The fault that `error` means to a client of `protocol`. Anything unforeseen is a 500."""
    match error:
        case PromptTooLong():
            # Agents look for either wording, so the OpenAI text carries both.
            more = f"; this model's maximum context length is {error.limit} tokens"
            message = str(error) + (more if protocol != "anthropic" else "")
            param = "input" if protocol == "openai-responses" else "messages"
            return Fault(400, message, param=param, code="context_length_exceeded")
        case Refused():
            code = {401: "invalid_api_key", 404: "not_found"}.get(error.status)
            return Fault(error.status, _named(error), param=error.field, code=code)
        case BadRequest():
            return Fault(400, _named(error), param=error.field)
        case QueueFull():
            status = 529 if protocol == "anthropic" else 503
            headers = {"retry-after": str(error.retry_after_s)}
            return Fault(status, str(error), code="overloaded", headers=headers)
        case EngineStopped():
            return Fault(503, str(error) or "the engine has stopped", code="engine_stopped")
        case _:
            return Fault(500, str(error) or type(error).__name__, code="engine_error")


def error_body(fault: Fault, protocol: Protocol) -> dict[str, Any]:
    """The JSON body, which is also the data of an error event in the middle of a stream."""
    if protocol == "anthropic":
        kind = _ANTHROPIC_TYPES.get(fault.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": fault.message}}
    kind = "invalid_request_error" if fault.status < 500 else "server_error"
    return {"error": {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}}


def _named(error: BadRequest) -> str:
    """The message, which begins with the field's name where there is one."""
    known = error.field is None or str(error).startswith(f"{error.field}:")
    return str(error) if known else f"{error.field}: {error}"


def protocol_of(path: str, headers: Mapping[str, str]) -> Protocol:
    """Whose shape an error takes: by path, and by the headers of Anthropic clients elsewhere."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    if path.startswith("/v1/responses"):
        return "openai-responses"
    if path.startswith(("/v1/chat", "/v1/completions")):
        return "openai"
    return "anthropic" if "anthropic-version" in headers else "openai"

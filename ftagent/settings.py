"""What the user can set, as one typed model, and where each value came from.

Precedence: defaults < TOML file < `FTAGENT_*` environment < command line flags. A flag that was not typed
carries no intent. Knows no engine and no command; imports neither torch nor Textual.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ftagent.errors import ConfigError

ENV_PREFIX = "FTAGENT_"
# Read elsewhere, before or beside the settings: they are no keys of the file.
ENV_ONLY = frozenset({"FTAGENT_CONFIG", "FTAGENT_DEBUG"})
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?(b)?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes of a size: "24GiB" and "24Gi" are 24 * 2**30, "24GB" and "24G" are 24 * 10**9, "512" is bytes.

    Raises ValueError with the accepted forms.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a size; write it like 24GiB, 1.5GB or 512MiB")
    unit = (match[2] or "").lower()
    return int(float(match[1]) * (_UNITS | _BINARY)[unit])


def _experts(value: object) -> object:
    """Accept a count (96), a fraction (0.5) or a size (2GiB); keep the text, checked."""
    text = str(value).strip()
    if re.fullmatch(r"\d+", text):
        return text
    if re.fullmatch(r"\d*\.\d+", text):
        if 0 < float(text) <= 1:
            return text
        raise ValueError(f"{text!r} is not a fraction between 0 and 1")
    try:
        parse_size(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a count (96), a fraction of all experts (0.5) nor a size (2GiB)"
        ) from None
    return text


def _anchors(value: object) -> object:
    """Accept a count (16) or a size (4GiB); keep the text, checked."""
    text = str(value).strip()
    try:
        parse_size(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a count of states (16) nor a size (4GiB)") from None
    return text


def _device(value: object) -> object:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(value)):
        raise ValueError(f"{str(value)!r} is no device; write auto, cpu, cuda or cuda:N")
    return value


def _names(value: object) -> object:
    return [name for name in re.split(r"[,\s]+", value) if name] if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Settings(BaseModel):
    """Everything that can be set. The key in the file, `FTAGENT_<KEY>` and `--<key>` are the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: str = "demo"
    """A checkpoint directory, a repository that was pulled, or `demo`, the small one that ships here."""
    device: Annotated[str, BeforeValidator(_device)] = "auto"
    """Where it runs: `auto`, `cpu`, `cuda` or `cuda:N`."""
    context: Annotated[int, Field(ge=256)] | None = None
    """Tokens of prompt and reply together. Unset: 64k where it fits, never over the model's own limit."""
    experts: Annotated[str, BeforeValidator(_experts)] | None = None
    """Room for experts on the device: a count (96), a size (2GiB) or a fraction of all experts (0.5)."""
    mode: Literal["auto", "fused", "offload", "cpu", "hybrid"] = "auto"
    """How experts are served. `auto` chooses by what fits."""
    seed: int = 0
    """Seed of sampling for requests that bring none."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads for the engine. Unset: the engine chooses."""
    vram: Size | None = None
    """Device memory the engine may use, like 24GiB. On the CPU it bounds what a device would hold."""
    ram: Size | None = None
    """Host memory the engine may use, like 64GiB. Unset: what is free."""
    anchors: Annotated[str, BeforeValidator(_anchors)] | None = None
    """Host memory for kept prompts: a count of states to resume at (16) or a size (4GiB). 0: none is kept."""
    verify_anchors: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the resumed prompts (0 to 1; the flag alone: all) to compute cold as well, and compare."""
    verify_weights: bool = False
    """Hold weights against their digests while they are read. For FTW; safetensors have none."""
    readers: Annotated[int, Field(ge=1, le=64)] | None = None
    """Threads that read experts. Unset: 4 for FTW, else one for each core, fewer if memory is short."""
    max_running: Annotated[int, Field(ge=1)] = 8
    """Requests that run at the same time."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Requests that may wait; one more is refused."""
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    """Prompt tokens of one step at most. Unset: 1,024 on the CPU; on a GPU what its workspace holds."""
    constrain_tools: Literal["auto", "required"] | None = None
    """Hold tool calls to the offered schemas: always (`auto`), or only where the client requires a call."""
    host: str = "127.0.0.1"
    """Address that `serve` listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """Port that `serve` listens on; 0 takes a free one."""
    token: str | None = None
    """What clients must present. Unset: invented per run. `run --engine` presents it to the other engine."""
    claude: str | None = None
    """Claude Code's executable. Unset: searched on PATH, then in ./node_modules/.bin."""
    codex: str | None = None
    """Codex's executable, likewise."""
    opencode: str | None = None
    """opencode's executable, likewise."""
    pi: str | None = None
    """pi's executable, likewise."""
    qwen: str | None = None
    """Qwen Code's executable, likewise."""
    prefix_key: str = "ctrl+]"
    """On `run`'s screen: the key before a key that is meant for ftagent, like ctrl+], ctrl+space or f10."""
    pass_env: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Environment variables that `run` hands to the agent besides the short list of harmless ones."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force. `sources` names, per key, the default, the file, the variable or the flag."""

    values: Settings
    sources: Mapping[str, str]


def load(file: Path, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Loaded:
    """Merge the four layers. Flags that are None were not typed.

    Raises ConfigError naming the file, variable or flag at fault.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.model_fields, "default")
    typed = {key: value for key, value in (flags or {}).items() if value not in (None, ())}
    layers = (
        {key: (value, str(file)) for key, value in _read_file(file).items()},
        {key: (value, ENV_PREFIX + key.upper()) for key, value in _read_environment(environ).items()},
        {key: (value, "--" + key.replace("_", "-")) for key, value in typed.items()},
    )
    for layer in layers:
        for key, (value, source) in layer.items():
            values[key], sources[key] = value, source
    try:
        return Loaded(Settings.model_validate(values), sources)
    except ValidationError as error:
        raise ConfigError(_explain(error, sources)) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            values = tomllib.load(stream)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    for key in values:
        if key not in Settings.model_fields:
            raise ConfigError(f"{file}: unknown key {key!r}{_nearest(key)}")
    return values


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in ENV_ONLY:
            continue
        key = name.removeprefix(ENV_PREFIX).lower()
        if key not in Settings.model_fields:
            raise ConfigError(f"environment: unknown variable {name}{_nearest(key, ENV_PREFIX)}")
        if value:  # an empty variable counts as unset, as with other programs
            values[key] = value
    return values


def _nearest(key: str, prefix: str = "") -> str:
    close = difflib.get_close_matches(key, Settings.model_fields, n=1)
    if not close:
        return "; `ftagent config schema` lists the keys"
    return f"; did you mean {prefix + close[0].upper() if prefix else repr(close[0])}?"


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0])
    source = sources[key]
    name = f"{source}: {key}" if source.endswith(".toml") or "/" in source else source
    reason = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] == "value_error" else f" (got {first['input']!r})"
    return f"{name}: {reason[0].lower() + reason[1:]}{given}"

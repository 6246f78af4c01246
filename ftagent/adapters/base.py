"""What an adapter is, and the parts all agents share: finding the program, its version, a clean environment.

Knows no engine and no terminal: an agent is told a URL, a token and a context length.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ftagent.errors import AgentFailed, AgentNotExecutable, AgentNotFound, ConfigError

Protocol = Literal["anthropic", "openai-chat", "openai-responses"]

# What an agent's own tools need to work as in the user's shell. No name here holds a secret.
PASSED = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR HOSTNAME
    TERM COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION COLORFGBG NO_COLOR FORCE_COLOR EDITOR VISUAL PAGER
    DISPLAY WAYLAND_DISPLAY DBUS_SESSION_BUS_ADDRESS SSH_AUTH_SOCK SSH_CONNECTION TMUX
    XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME
    GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_CONFIG_GLOBAL GIT_SSH_COMMAND
    VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT PYENV_VERSION PYTHONPATH NVM_DIR NVM_BIN NODE_PATH
    CARGO_HOME RUSTUP_HOME GOPATH GOROOT JAVA_HOME LD_LIBRARY_PATH PKG_CONFIG_PATH MAKEFLAGS
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS
    """.split()
)
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class Target:
    """The engine, as an agent is told of it. `context` is in tokens, prompt and reply together."""

    url: str
    token: str
    model: str
    context: int


def reply_tokens(target: Target) -> int:
    """The longest reply an agent is told of, so that its prompts and a reply fit into the context."""
    return max(1, min(target.context // 4, 32768))


@dataclass(frozen=True, slots=True)
class VolatileSpan:
    """A place in an agent's prompt that changes without meaning: what, where, and what keeps it out."""

    where: str
    pattern: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Order:
    """One run of an agent, as the user asked for it.

    `program` are the words that its command line begins with: the agent, or its interpreter before it.
    `task` None means interactive. `events`: the agent prints JSON lines. `unattended`: the agent asks for no
    permission. `lean`: fewer tools, for a small model. `directory` is the agent's own, the same for every run
    in `project`.
    """

    program: tuple[str, ...]
    target: Target
    directory: Path
    project: Path
    task: str | None = None
    events: bool = False
    unattended: bool = False
    lean: bool = False
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the agent. `environment` is laid over the scrubbed one; `scratch` goes when it ends."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    scratch: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """One agent: a table, and the function that writes its configuration and its command line.

    `prepare` may write only under `order.directory`. `owned` are the prefixes of variables that steer this
    agent: they never reach it from outside. `homes` are those that say where its state is. `resume` are its
    arguments for going on where it ended. `node` is the least Node it runs on, where it is JavaScript. `pane`
    are variables for our own terminal. An agent without `executable` is named by the user.
    """

    name: str
    executable: str
    setting: str
    minimum: tuple[int, ...]
    install: str
    protocol: Protocol
    owned: tuple[str, ...]
    homes: tuple[str, ...]
    resume: tuple[str, ...]
    volatile: tuple[VolatileSpan, ...]
    prepare: Callable[[Order], Launch]
    node: tuple[int, ...] | None = None
    pane: Mapping[str, str] = field(default_factory=dict)


class Program(NamedTuple):
    """What is started: the first words of the command line, its version, and the user's own arguments."""

    words: tuple[str, ...]
    version: str
    arguments: tuple[str, ...] = ()


def program(
    adapter: Adapter, named: str | None, environ: Mapping[str, str], project: Path, arguments: tuple[str, ...]
) -> Program:
    """How the agent is started here. `environ` is the scrubbed one; `named` is the user's setting.

    An agent without an executable is the first of the `arguments`. Raises AgentNotFound, AgentNotExecutable,
    AgentFailed when it is too old or mute, ConfigError when nothing is named.
    """
    if not adapter.executable:
        if not arguments:
            raise ConfigError(f"ftagent run {adapter.name}: name the program: {adapter.install}")
        return Program((_which(adapter, arguments[0], environ),), "", arguments[1:])
    binary = find(adapter, named, environ, project)
    words = (*_interpreter(adapter, binary, environ), str(binary))
    return Program(words, version(adapter, words, environ), arguments)


def _which(adapter: Adapter, command: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    if found:
        return os.path.abspath(found)
    if Path(command).is_file():
        raise AgentNotExecutable(f"{adapter.name}: {command} is not executable; chmod +x it or name another")
    raise AgentNotFound(f"{adapter.name}: no {command!r} on PATH")


def _interpreter(adapter: Adapter, binary: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The Node to run it with: none where PATH's is new enough, else one that npm put beside the agent."""
    if adapter.node is None or _is_native(binary):
        return ()
    seen: list[str] = []
    beside = shutil.which("node", path=str(binary.parent))
    for node in (shutil.which("node", path=environ.get("PATH", os.defpath)), beside):
        if node is None:
            continue
        said = _said((node, "--version"), environ)
        if _numbers(said) >= adapter.node:
            return (node,) if node == beside else ()
        seen.append(said or node)
    needed = ".".join(map(str, adapter.node))
    raise AgentFailed(
        f"{adapter.name}: it needs Node {needed} or newer, here is {' and '.join(seen) or 'none'}; "
        f"install one on PATH, or beside it with `npm install node@{adapter.node[0]}`"
    )


def _is_native(binary: Path) -> bool:
    """Whether it is started without Node, as far as its first line tells."""
    with binary.open("rb") as file:
        return b"node" not in file.readline(256)


def _said(command: Sequence[str], environ: Mapping[str, str]) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip()
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    """The first version in a text; nothing when there is none."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def find(adapter: Adapter, named: str | None, environ: Mapping[str, str], project: Path) -> Path:
    """The agent's program: the one `named` by the user, else on PATH, else in the project's node_modules.

    Raises AgentNotFound with the way to install it, AgentNotExecutable.
    """
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise AgentNotFound(
                f"{adapter.name}: {path} (setting {adapter.setting!r}) does not exist; "
                f"name another, or install it with `{adapter.install}`"
            )
        if not os.access(path, os.X_OK):
            raise AgentNotExecutable(f"{adapter.name}: {path} is not executable; chmod +x it or name another")
        return path.absolute()
    search = environ.get("PATH", os.defpath) + os.pathsep + str(project / "node_modules" / ".bin")
    found = shutil.which(adapter.executable, path=search)
    if not found:
        raise AgentNotFound(
            f"{adapter.name}: no {adapter.executable!r} on PATH or in ./node_modules/.bin; "
            f"install it with `{adapter.install}`, or name it with FTAGENT_{adapter.setting.upper()}"
        )
    return Path(found).absolute()


def version(adapter: Adapter, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """What `--version` says. Raises AgentNotExecutable, and AgentFailed when it is too old or mute."""
    binary = words[-1]
    try:
        # Even asked for their version, some agents write into the home they find.
        with tempfile.TemporaryDirectory(prefix="ftagent-") as home:
            done = subprocess.run(
                [*words, "--version"],
                env={**environ, **dict.fromkeys(adapter.homes, home)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    except OSError as error:
        raise AgentNotExecutable(f"{adapter.name}: {binary} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise AgentFailed(f"{adapter.name}: `{binary} --version` gave no answer in 60 s") from error
    found = _numbers(done.stdout)
    if done.returncode or not found:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise AgentFailed(f"{adapter.name}: `{binary} --version` failed, it said: {said[0][:200]}")
    name = ".".join(map(str, found))
    if found < adapter.minimum:
        needed = ".".join(map(str, adapter.minimum))
        raise AgentFailed(
            f"{adapter.name}: {binary} is version {name}, ftagent needs {needed} or newer; "
            f"install it with `{adapter.install}`"
        )
    return name


def scrubbed(adapter: Adapter, environ: Mapping[str, str], extra: Collection[str] = ()) -> dict[str, str]:
    """The user's environment without keys, tokens and provider switches: the names in PASSED, and `extra`.

    A proxy is passed on with the loopback excepted, since the engine is there. Raises ConfigError when
    `extra` names a variable that steers the agent.
    """
    for name in extra:
        if name.startswith(adapter.owned):
            raise ConfigError(
                f"--pass-env {name}: steers {adapter.name}, so ftagent sets it or leaves it out"
            )
    allowed = PASSED | _PROXIES | set(extra)
    clean = {name: value for name, value in environ.items() if name in allowed or name.startswith("LC_")}
    if _PROXIES & clean.keys():
        past = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
        clean["NO_PROXY"] = clean["no_proxy"] = f"{past},127.0.0.1,localhost,::1".lstrip(",")
    return clean


def write_private(file: Path, value: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all, readable by the user alone. Raises ConfigError."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=1)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write {file}: {error.strerror}; set XDG_STATE_HOME to a directory you can write"
        ) from error


def project_directory(root: Path, adapter: Adapter, project: Path) -> Path:
    """Where the agent keeps its state for `project`: the same for every run, since prompts contain it."""
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
    return root / "agents" / adapter.name / f"{project.name or 'root'}-{digest}"

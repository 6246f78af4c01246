"""What an adapter is, and the parts all agents share: finding the program, its version, a clean environment.

Knows no engine and no terminal: an agent is told a URL, a token and a context length.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class VolatileSpan:
    """A place in an agent's prompt that changes without meaning: what, where, and what keeps it out."""

    where: str
    pattern: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Order:
    """One run of an agent, as the user asked for it.

    `task` None means interactive. `events`: the agent prints JSON lines. `unattended`: the agent asks for no
    permission. `lean`: fewer tools, for a small model. `directory` is the agent's own, the same for every run
    in `project`.
    """

    binary: Path
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
    agent: they never reach it from outside. `resume` are its arguments for going on where it ended.
    """

    name: str
    executable: str
    setting: str
    minimum: tuple[int, ...]
    install: str
    protocol: Protocol
    owned: tuple[str, ...]
    resume: tuple[str, ...]
    volatile: tuple[VolatileSpan, ...]
    prepare: Callable[[Order], Launch]


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


def version(adapter: Adapter, binary: Path, environ: Mapping[str, str]) -> str:
    """What `--version` says. Raises AgentNotExecutable, and AgentFailed when it is too old or mute."""
    try:
        done = subprocess.run(
            [binary, "--version"],
            env=dict(environ),
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
    match = re.search(r"\d+(?:\.\d+)+", done.stdout)
    if done.returncode or not match:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise AgentFailed(f"{adapter.name}: `{binary} --version` failed, it said: {said[0][:200]}")
    if tuple(map(int, match[0].split("."))) < adapter.minimum:
        needed = ".".join(map(str, adapter.minimum))
        raise AgentFailed(
            f"{adapter.name}: {binary} is version {match[0]}, ftagent needs {needed} or newer; "
            f"install it with `{adapter.install}`"
        )
    return match[0]


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


def project_directory(root: Path, adapter: Adapter, project: Path) -> Path:
    """Where the agent keeps its state for `project`: the same for every run, since prompts contain it."""
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:12]
    return root / "agents" / adapter.name / f"{project.name or 'root'}-{digest}"

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.adapters import base
from ftagent.errors import AgentFailed, AgentNotExecutable, AgentNotFound, ConfigError

ADAPTERS = [adapter for adapter in map(adapters.get, adapters.names()) if adapter.executable]
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


def program(path: Path, text: str = "echo 9.9.9") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_an_unknown_agent_is_answered_with_the_nearest_or_the_list() -> None:
    with pytest.raises(ConfigError, match=r"did you mean claude-code\? known agents: claude-code, codex, "):
        adapters.get("claude_code")
    with pytest.raises(ConfigError, match="'zzz'; known agents: claude-code, codex, "):
        adapters.get("zzz")


@each_adapter
def test_the_order_of_search(adapter: base.Adapter, tmp_path: Path) -> None:
    named = program(tmp_path / "named" / "x")
    on_path = program(tmp_path / "bin" / adapter.executable)
    local = program(tmp_path / "node_modules" / ".bin" / adapter.executable)
    environ = {"PATH": str(on_path.parent)}
    assert base.find(adapter, str(named), environ, tmp_path) == named
    assert base.find(adapter, None, environ, tmp_path) == on_path
    on_path.unlink()
    assert base.find(adapter, None, environ, tmp_path) == local
    local.unlink()
    with pytest.raises(AgentNotFound) as caught:
        base.find(adapter, None, environ, tmp_path)
    assert adapter.install in str(caught.value)


@each_adapter
def test_a_named_program_must_exist_and_be_executable(adapter: base.Adapter, tmp_path: Path) -> None:
    with pytest.raises(AgentNotFound, match="does not exist; name another, or install it"):
        base.find(adapter, str(tmp_path / "none"), {}, tmp_path)
    plain = tmp_path / "plain"
    plain.write_text("", encoding="utf-8")
    plain.chmod(stat.S_IRUSR)
    with pytest.raises(AgentNotExecutable, match="not executable"):
        base.find(adapter, str(plain), {}, tmp_path)


@each_adapter
@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("echo '0.0.1 (Agent)'", AgentFailed, "is version 0.0.1, ftagent needs"),
        ("echo no numbers", AgentFailed, "it said: no numbers"),
        ("echo broken >&2; exit 3", AgentFailed, "it said: broken"),
    ],
)
def test_a_version_that_will_not_do(
    adapter: base.Adapter, text: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        base.version(adapter, [str(program(tmp_path / "agent", text))], {"PATH": "/usr/bin:/bin"})


@each_adapter
def test_a_program_of_another_format_is_not_executable(adapter: base.Adapter, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x00\x01\x02")
    odd.chmod(0o755)
    with pytest.raises(AgentNotExecutable, match="cannot be run"):
        base.version(adapter, [str(odd)], {})


@each_adapter
def test_the_version_is_compared_by_number(adapter: base.Adapter, tmp_path: Path) -> None:
    major, minor, patch = adapter.minimum
    newer = f"{major}.{minor}.{patch * 10}"
    assert base.version(adapter, [str(program(tmp_path / "agent", f"echo {newer}"))], {}) == newer


@each_adapter
def test_asking_for_the_version_leaves_nothing_in_the_home(adapter: base.Adapter, tmp_path: Path) -> None:
    home = " ".join(f'"${name}"' for name in adapter.homes)
    agent = program(tmp_path / "agent", f"for home in {home}; do touch $home/x || exit 1; done; echo 9.9.9")
    assert base.version(adapter, [str(agent)], {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) == "9.9.9"
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def node(path: Path, version: str) -> Path:
    """A program that calls itself Node, and runs another with its words."""
    return program(path, f'[ "$1" = --version ] && echo v{version} || exec sh "$@"')


def javascript(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env node\necho 9.9.9\n", encoding="utf-8")
    path.chmod(0o755)
    return path


NEEDS_NODE = [adapter for adapter in ADAPTERS if adapter.node]


@pytest.mark.parametrize("adapter", NEEDS_NODE, ids=lambda adapter: adapter.name)
def test_a_newer_node_is_taken_from_beside_the_agent(adapter: base.Adapter, tmp_path: Path) -> None:
    agent = javascript(tmp_path / "npm" / adapter.executable)
    node(tmp_path / "bin" / "node", "20.20.2")
    environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    with pytest.raises(AgentFailed, match=r"needs Node 22.*, here is v20\.20\.2; .*npm install node@22"):
        base.program(adapter, str(agent), environ, tmp_path, ())
    beside = node(tmp_path / "npm" / "node", "22.23.3")
    found = base.program(adapter, str(agent), environ, tmp_path, ("--x",))
    assert found == base.Program((str(beside), str(agent)), "9.9.9", ("--x",))
    node(tmp_path / "bin" / "node", "24.0.0")
    assert base.program(adapter, str(agent), environ, tmp_path, ()).words == (str(agent),)


@pytest.mark.parametrize("adapter", NEEDS_NODE, ids=lambda adapter: adapter.name)
def test_a_program_that_is_no_javascript_needs_no_node(adapter: base.Adapter, tmp_path: Path) -> None:
    agent = program(tmp_path / adapter.executable)
    environ = {"PATH": "/nowhere"}
    assert base.program(adapter, str(agent), environ, tmp_path, ()).words == (str(agent),)


def test_a_program_of_the_users_own_is_looked_for_on_path(tmp_path: Path) -> None:
    custom = adapters.get("custom")
    mine = program(tmp_path / "bin" / "mine")
    environ = {"PATH": str(tmp_path / "bin")}
    found = base.program(custom, None, environ, tmp_path, ("mine", "--x"))
    assert found == base.Program((str(mine),), "", ("--x",))
    with pytest.raises(ConfigError, match=r"name the program: ftagent run custom -- CMD"):
        base.program(custom, None, environ, tmp_path, ())
    with pytest.raises(AgentNotFound, match="no 'none' on PATH"):
        base.program(custom, None, environ, tmp_path, ("none",))
    mine.chmod(stat.S_IRUSR)
    with pytest.raises(AgentNotExecutable, match="is not executable"):
        base.program(custom, None, environ, tmp_path, (str(mine),))


SECRETS = (
    "ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL CLAUDE_CODE_USE_BEDROCK CLAUDE_CONFIG_DIR "
    "OPENAI_API_KEY OPENAI_BASE_URL GEMINI_API_KEY GOOGLE_API_KEY GOOGLE_APPLICATION_CREDENTIALS "
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_BEARER_TOKEN_BEDROCK "
    "AZURE_OPENAI_API_KEY OPENROUTER_API_KEY MISTRAL_API_KEY GROQ_API_KEY XAI_API_KEY DEEPSEEK_API_KEY "
    "HF_TOKEN GITHUB_TOKEN GH_TOKEN NPM_TOKEN FTAGENT_TOKEN CLAUDECODE GIT_CONFIG_COUNT NODE_OPTIONS"
).split()


@each_adapter
def test_no_key_and_no_switch_gets_through(adapter: base.Adapter) -> None:
    kept = {"PATH": "/bin", "HOME": "/home/u", "TERM": "xterm", "LC_ALL": "C.UTF-8", "VIRTUAL_ENV": "/v"}
    assert base.scrubbed(adapter, {**dict.fromkeys(SECRETS, "secret"), **kept}) == kept


@each_adapter
def test_more_variables_pass_when_named_but_not_the_agents_own(adapter: base.Adapter) -> None:
    environ = {"GH_TOKEN": "t", adapter.owned[0] + "X": "1"}
    assert base.scrubbed(adapter, environ, ["GH_TOKEN"]) == {"GH_TOKEN": "t"}
    with pytest.raises(ConfigError, match="--pass-env"):
        base.scrubbed(adapter, environ, [adapter.owned[0] + "X"])


@each_adapter
def test_a_proxy_never_stands_before_the_loopback(adapter: base.Adapter) -> None:
    clean = base.scrubbed(adapter, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp"})
    assert clean["HTTPS_PROXY"] == "http://p:1"
    assert clean["NO_PROXY"] == clean["no_proxy"] == "corp,127.0.0.1,localhost,::1"


@each_adapter
def test_the_directory_is_stable_per_project_and_differs_between_them(
    adapter: base.Adapter, tmp_path: Path
) -> None:
    one, two = tmp_path / "a" / "repo", tmp_path / "b" / "repo"
    assert base.project_directory(tmp_path, adapter, one) == base.project_directory(tmp_path, adapter, one)
    assert base.project_directory(tmp_path, adapter, one) != base.project_directory(tmp_path, adapter, two)

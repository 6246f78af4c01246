from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ftagent import adapters
from ftagent.adapters import base
from ftagent.errors import AgentFailed, AgentNotExecutable, AgentNotFound, ConfigError

ADAPTERS = [adapters.get(name) for name in adapters.names()]
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


def program(path: Path, text: str = "echo 9.9.9") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_an_unknown_agent_is_answered_with_the_nearest_or_the_list() -> None:
    with pytest.raises(ConfigError, match=r"did you mean claude-code\?"):
        adapters.get("claude_code")
    with pytest.raises(ConfigError, match="known agents: claude-code"):
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
        ("echo '1.0.0 (Agent)'", AgentFailed, "is version 1.0.0, ftagent needs"),
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

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftagent.cli import COMMANDS
from tests.support.command import PROGRAM, ftagent, private_environment


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter once `code` has run."""
    program = f"import sys\n{code}\nprint(' '.join(sorted(name.split('.')[0] for name in sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


HELP = """
from ftagent.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
"""


def test_help_imports_neither_torch_nor_textual() -> None:
    heavy = {"torch", "textual", "pydantic", "fastapi", "uvicorn", "numpy", "psutil"}
    assert modules_after(HELP) & heavy == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_neither_torch_nor_textual(name: str) -> None:
    loaded = modules_after(HELP.replace('"--help"', f'"{name}", "--help"'))
    assert loaded & {"torch", "textual", "fastapi", "uvicorn"} == set()


def test_help_comes_at_once(tmp_path: Path) -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = ftagent("--help", directory=tmp_path)
        times.append(time.perf_counter() - began)
        assert done.returncode == 0
    assert min(times) < 0.6, times  # 0.1 s on an idle core; the margin is for a busy machine


def test_help_lists_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    shown = ftagent("--help", directory=tmp_path).stdout
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "127 agent not found" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_has_help(name: str, tmp_path: Path) -> None:
    done = ftagent(name, "--help", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: ftagent " + name)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nonsense"], 2, ["nonsense", "ftagent --help"]),
        (["--nonsense"], 2, ["--nonsense"]),
        (["config", "show", "--nonsense"], 2, ["--nonsense", "ftagent config show --help"]),
        (["chat"], 2, ["terminal", "-p"]),
        (["chat", "--json"], 2, ["--json", "-p"]),
        (["chat", "-p"], 2, ["prompt"]),
        (["chat", "-p", "hi", "--context", "x"], 2, ["--context"]),
        (["chat", "-p", "hi", "--resume", "20990101"], 2, ["no session to resume"]),
        (["serve", "--host", "192.0.2.1"], 2, ["--allow-remote", "--token"]),
        (["serve", "--host", "192.0.2.1", "--allow-remote"], 2, ["--token"]),
        (["serve", "--host", "0.0.0.0", "--allow-remote", "--token", "x"], 2, ["0.0.0.0"]),
        (
            ["serve", "--host", "192.0.2.1", "--allow-remote", "--token", "x"],
            2,
            ["cannot listen", "192.0.2.1"],
        ),
        (["bench", "decode", "--behind", "0"], 2, ["--behind", "0"]),
        (["run", "claude-cod", "-p", "x"], 2, ["claude-code"]),
        (["run", "claude-code"], 2, ["terminal", "-p"]),
        (["run", "claude-code", "--exec"], 2, ["terminal", "-p"]),
        (["run", "claude-code", "--json"], 2, ["--json", "-p"]),
        (["run", "claude-code", "--exec", "-p", "x"], 2, ["--exec"]),
        (["run", "claude-code", "-p", " "], 2, ["empty"]),
        (["run", "claude-code", "-p", "x", "--timeout", "0"], 2, ["--timeout"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    arguments: list[str], code: int, words: list[str], tmp_path: Path
) -> None:
    done = ftagent(*arguments, directory=tmp_path)
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ftagent: ")
    assert all(word in lines[0] for word in words), lines[0]
    assert left_behind(tmp_path) == []


def left_behind(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_an_unknown_model_directory_is_one_line_and_exit_3(tmp_path: Path) -> None:
    done = ftagent("chat", "-p", "hi", "--model", str(tmp_path / "none"), directory=tmp_path)
    assert done.returncode == 3, done.stderr
    assert str(tmp_path / "none") in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert left_behind(tmp_path) == []


def test_a_taken_port_is_refused_before_loading(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ftagent("serve", "--port", str(port), "--json", directory=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"port {port}" in done.stderr
    error = json.loads(done.stdout)
    assert (error["type"], error["exit_code"]) == ("error", 2)


def test_an_agent_that_is_not_installed_is_127_with_the_way_to_install_it(tmp_path: Path) -> None:
    done = ftagent("run", "claude-code", "-p", "x", directory=tmp_path, extra={"PATH": "/nonexistent"})
    assert done.returncode == 127
    assert "npm install -g @anthropic-ai/claude-code@2.1.332" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert left_behind(tmp_path) == []


def test_config_show_names_sources_and_hides_the_token(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('ram = "24GiB"\n', encoding="utf-8")
    extra = {"FTAGENT_CONFIG": str(file), "FTAGENT_TOKEN": "s3cret", "FTAGENT_SEED": "5"}
    done = ftagent("config", "show", "--json", directory=tmp_path, extra=extra)
    shown = json.loads(done.stdout)
    assert shown["ram"] == {"value": 24 * 2**30, "source": str(file)}
    assert shown["seed"] == {"value": 5, "source": "FTAGENT_SEED"}
    assert shown["model"] == {"value": "demo", "source": "default"}
    plain = ftagent("config", "show", directory=tmp_path, extra=extra)
    assert "FTAGENT_SEED" in plain.stdout
    assert "s3cret" not in plain.stdout + done.stdout


def test_config_validate_exits_2_and_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("contxt = 1\n", encoding="utf-8")
    done = ftagent("config", "validate", directory=tmp_path, extra={"FTAGENT_CONFIG": str(file)})
    assert done.returncode == 2
    assert done.stderr == f"ftagent: {file}: unknown key 'contxt'; did you mean 'context'?\n"
    file.write_text("context = 4096\n", encoding="utf-8")
    assert (
        ftagent("config", "validate", directory=tmp_path, extra={"FTAGENT_CONFIG": str(file)}).returncode == 0
    )


def test_config_path_and_schema(tmp_path: Path) -> None:
    where = ftagent("config", "path", directory=tmp_path).stdout.strip()
    assert where == str(tmp_path / "home" / ".config" / "ftagent" / "config.toml")
    schema = json.loads(ftagent("config", "schema", directory=tmp_path).stdout)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["port"]["default"] == 8765


def test_doctor_reports_and_its_json_agrees(tmp_path: Path) -> None:
    done = ftagent("doctor", "--quick", "--json", directory=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["works"] else 1)
    checks = {check["name"]: check for check in report["checks"]}
    assert {"python", "torch", "cpu", "memory", "gpu", "claude-code", "settings", "state", "locale"} <= set(
        checks
    )
    assert checks["python"]["status"] == "ok"
    assert str(tmp_path) in checks["state"]["found"]
    assert left_behind(tmp_path) == []


def test_doctor_fails_on_invalid_settings_but_still_reports(tmp_path: Path) -> None:
    done = ftagent("doctor", "--quick", directory=tmp_path, extra={"FTAGENT_PORT": "many"})
    assert done.returncode == 1
    assert "fail  settings" in done.stdout
    assert "FTAGENT_PORT" in done.stdout


def test_tracebacks_only_with_debug(tmp_path: Path) -> None:
    arguments = ("config", "show")
    extra = {"FTAGENT_PORT": "many"}
    assert "Traceback" not in ftagent(*arguments, directory=tmp_path, extra=extra).stderr
    for done in (
        ftagent("--debug", *arguments, directory=tmp_path, extra=extra),
        ftagent(*arguments, directory=tmp_path, extra={**extra, "FTAGENT_DEBUG": "1"}),
    ):
        assert done.returncode == 2
        assert "Traceback" in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*PROGRAM, "config", "schema"),
        cwd=tmp_path,
        env=private_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("arguments", [[], ["bench"], ["config"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str], tmp_path: Path) -> None:
    done = ftagent(*arguments, directory=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ftagent(*arguments, "--help", directory=tmp_path).stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_one_that_says_nothing(closed: str, tmp_path: Path) -> None:
    done = shell(f"chat -p {closed}", tmp_path)
    assert done.returncode == 2
    assert "internal error" not in done.stderr
    assert ("no prompt" in done.stderr) == ("2>&-" not in closed)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    done = shell("config schema >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "ftagent: output: No space left on device; --debug shows where\n"


def test_a_narrow_encoding_costs_characters_only(tmp_path: Path) -> None:
    extra = {"PYTHONIOENCODING": "latin-1", "FTAGENT_CONFIG": "/\u20ac.toml"}
    done = shell("config path", tmp_path, extra)
    assert (done.returncode, done.stdout) == (0, "/?.toml\n")


def shell(
    line: str, directory: Path, extra: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`ftagent LINE` under a shell, which closes and redirects its streams."""
    command = f"exec {shlex.join(PROGRAM)} {line}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=directory,
        env=private_environment(directory, extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

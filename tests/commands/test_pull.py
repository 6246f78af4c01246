"""`ftagent pull` as it is typed, against a hub on the loopback that HF_ENDPOINT names."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftagent import __version__
from tests.support.command import PROGRAM, ftagent, private_environment
from tests.support.embedded import as_safetensors
from tests.support.hub_server import Repository, serving, small_repository

FIRST = "model-00001-of-00002.safetensors"
TOKEN = "hf_s3cret"


def test_stdout_is_the_directory_and_stderr_the_story(tmp_path: Path) -> None:
    repository = small_repository()
    repository.token = TOKEN
    with serving(repository) as hub:
        extra = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        done = ftagent("pull", "lab/tiny", directory=tmp_path, extra=extra)
        assert done.returncode == 0, done.stderr
        directory = tmp_path / "home" / ".local" / "share" / "ftagent" / "models" / "lab" / "tiny"
        assert done.stdout == f"{directory}\n"
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"lab/tiny at {repository.commit}: 8 files, ")
        assert last.endswith("hashes checked; load it with --model lab/tiny")
        again = ftagent("pull", "lab/tiny", "--to", "here", "--json", directory=tmp_path, extra=extra)
        assert again.returncode == 0, again.stderr
        found = json.loads(again.stdout)
        assert (found["type"], found["directory"], found["revision"]) == ("pulled", "here", "main")
        assert found["commit"] == repository.commit
        assert found["bytes"] == found["fetched_bytes"]
        assert again.stderr.splitlines()[-1].endswith("load it with --model here"), "the name is taken"
        extra["HF_TOKEN"] = "hf_wr0ng"
        refused = ftagent("--debug", "pull", "lab/tiny", "--json", directory=tmp_path, extra=extra)
        assert refused.returncode == 1
        assert json.loads(refused.stdout)["exit_code"] == 1
        assert "refuses revision 'main' of lab/tiny (401); check the token" in refused.stderr
        for shown in (done, again, refused):
            assert all(word not in shown.stdout + shown.stderr for word in (TOKEN, "hf_wr0ng", "s1gned"))


@pytest.mark.parametrize(
    ("arguments", "extra", "code", "words"),
    [
        (("../x",), {}, 2, "write OWNER/NAME"),
        (("/etc/passwd",), {}, 2, "write OWNER/NAME"),
        (("lab/tiny", "--revision", ""), {}, 2, "--revision is empty"),
        (("lab/none",), {}, 1, "knows no model lab/none"),
        (("lab/tiny", "--revision", "v9"), {}, 1, "lab/tiny has no revision 'v9'"),
        (("lab/tiny",), {"HF_HUB_OFFLINE": "1"}, 1, "switched off by HF_HUB_OFFLINE; unset it"),
        (("lab/tiny",), {"HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "check the connection"),
        (("lab/tiny",), {"HF_ENDPOINT": "nonsense"}, 1, "see HF_ENDPOINT"),
    ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], extra: dict[str, str], code: int, words: str, tmp_path: Path
) -> None:
    with serving(small_repository()) as hub:
        environment = {"HF_ENDPOINT": hub.url, **extra}
        done = ftagent("pull", *arguments, directory=tmp_path, extra=environment)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_hub_is_told_the_program_and_nothing_of_its_surroundings(tmp_path: Path) -> None:
    with serving(small_repository()) as hub:
        extra = {"HF_ENDPOINT": hub.url, "AI_AGENT": "some-agent", "CLAUDECODE": "1"}
        done = ftagent("pull", "lab/tiny", directory=tmp_path, extra=extra)
    assert done.returncode == 0, done.stderr
    assert {item.path.split("/")[1] for item in hub.seen} == {"api", "lab", "cdn"}
    assert {item.path for item in hub.seen if item.path.startswith("/api/")} == {
        "/api/models/lab/tiny/revision/main"
    }
    named = {item.program for item in hub.seen}
    assert all(text.startswith(f"ftagent/{__version__}; ") for text in named)
    assert not any("agent/" in text.removeprefix("ftagent/") or "torch" in text for text in named)


def test_a_repository_that_was_not_pulled_is_refused_with_the_command(tmp_path: Path) -> None:
    done = ftagent("chat", "-p", "Hello", "--model", "lab/tiny", directory=tmp_path)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "`ftagent pull lab/tiny` fetches it" in line


def test_an_interrupted_pull_says_so_and_goes_on(tmp_path: Path) -> None:
    repository = small_repository()
    size = len(repository.files[FIRST])
    with serving(repository) as hub:
        # The server holds the connection, so the reader ends when it has waited for that long.
        extra = {"HF_ENDPOINT": hub.url, "HF_HUB_DOWNLOAD_TIMEOUT": "4"}
        hold = hub.hold(FIRST, 2_000_000)
        child = subprocess.Popen(
            (*PROGRAM, "pull", "lab/tiny", "--to", "there"),
            cwd=tmp_path,
            env=private_environment(tmp_path, extra),
            stderr=subprocess.PIPE,
            text=True,
            # A shell lets what it starts in the background ignore SIGINT, and so these tests too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            assert hold.reached.wait(60)
            partial = tmp_path / "there" / ".ftagent"
            while not any(file.stat().st_size for file in partial.glob(f"{FIRST}.*.part")):
                assert child.poll() is None, "ended before a byte was written"
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
        finally:
            hold.go.set()
            child.kill()
            child.wait()
        assert child.returncode == 130, said
        assert said.splitlines()[-1] == "interrupted; the same command goes on where it stopped"
        earlier = len(hub.seen)
        done = ftagent("pull", "lab/tiny", "--to", "there", "--json", directory=tmp_path, extra=extra)
        assert done.returncode == 0, done.stderr
        asked = {item.range for item in hub.seen[earlier:] if item.path.endswith(FIRST)}
    assert (tmp_path / "there" / FIRST).read_bytes() == repository.files[FIRST]
    (begin,) = {int(str(item).removeprefix("bytes=").partition("-")[0]) for item in asked}
    assert 0 < begin < size


@pytest.mark.slow
def test_a_pulled_model_answers_by_its_name(tmp_path: Path) -> None:
    source = as_safetensors(tmp_path / "source")
    files = {file.name: file.read_bytes() for file in sorted(source.iterdir())}
    with serving(Repository(files), "lab/embedded") as hub:
        done = ftagent("pull", "lab/embedded", directory=tmp_path, extra={"HF_ENDPOINT": hub.url})
    assert done.returncode == 0, done.stderr
    answers = [
        ftagent("chat", "-p", "Say hello", "--model", model, "--json", directory=tmp_path, timeout_s=110)
        for model in ("lab/embedded", str(source))
    ]
    assert answers[0].returncode == 0, answers[0].stderr
    said = [
        [event["text"] for event in map(json.loads, answer.stdout.splitlines()) if "text" in event]
        for answer in answers
    ]
    assert said[0] == said[1] != []
    done = ftagent("convert", "lab/embedded", "as-ftw", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "as-ftw").iterdir() if file.suffix != ".ftw"} == {
        name for name in files if not name.endswith(".safetensors")
    }


def test_help_imports_nothing_of_the_hub() -> None:
    code = (
        "import sys\nfrom ftagent.cli import main\n"
        "try:\n    main(['pull', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.splitlines()[-1]
    assert all(f"'{name}'" not in loaded for name in ("huggingface_hub", "httpx2", "torch"))

"""`ftagent serve` as a process of its own, with the embedded model and real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ftagent import demo
from tests.support.command import PROGRAM, ftagent, private_environment
from tests.support.embedded import WEIGHTS

pytestmark = pytest.mark.skipif(not WEIGHTS.exists(), reason="the embedded model's weights are not here")


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running `ftagent serve --json`, and its first line."""
    with subprocess.Popen(
        (*PROGRAM, "serve", "--json", "--port", "0", "--threads", "1", *arguments),
        cwd=directory,
        env=private_environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.kill()


def post(ready: dict[str, Any], path: str, body: dict[str, Any], token: str | None = None) -> Any:
    request = urllib.request.Request(
        ready["url"] + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token or ready['token']}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


MESSAGE = {"model": "demo", "max_tokens": 16, "messages": [{"role": "user", "content": "What is ftagent?"}]}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path, "--context", "4096") as (process, ready):
        assert ready["type"] == "ready"
        assert set(ready) == {"type", "url", "token", "model", "context"}
        assert ready["context"] == 4096
        reply = post(ready, "/v1/messages", MESSAGE)
        assert reply["type"] == "message"
        assert reply["usage"]["output_tokens"] > 0
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(ready, "/v1/messages", MESSAGE, token="wrong")
        refused.value.close()
        assert refused.value.code == 401
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err
    assert "loaded" in err


@pytest.mark.slow
def test_one_answer_from_the_command_line(tmp_path: Path) -> None:
    done = ftagent("chat", "-p", "What is ftagent?", "--threads", "1", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ftagent" in done.stdout.lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        (("decode", "--behind", "64", "--tokens", "8"), {"context": 64, "tokens": 8}),
        (("prefill", "--tokens", "256"), {"tokens": 256}),
    ],
    ids=["decode", "prefill"],
)
def test_a_bench_reports_what_it_measured_and_where(
    arguments: tuple[str, ...], own: dict[str, int], tmp_path: Path
) -> None:
    done = ftagent("bench", *arguments, "--repeats", "2", "--json", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert own.items() <= result.items()
    assert result["bench"] == arguments[0]
    assert result["tokens_per_s"] > 0
    assert len(result["runs"]) == 2
    assert result["machine"]["cores"] >= 1
    assert result["peak_rss_bytes"] > 50 * 2**20


@pytest.mark.slow
def test_the_doctor_lets_the_embedded_model_answer(tmp_path: Path) -> None:
    done = ftagent("doctor", "--json", directory=tmp_path)
    model = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["model"]
    assert model["status"] == "ok", model
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: (model / WEIGHTS.name).unlink(), "safetensors"),
        (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda model: (model / "config.json").write_text('{"model_type":"mystery"}', "utf-8"), "mystery"),
        (lambda model: (model / "config.json").write_text("{", "utf-8"), "config.json"),
    ],
    ids=["no weights", "no tokenizer", "unknown family", "damaged config"],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_3(
    change: Any, words: str, tmp_path: Path
) -> None:
    model = tmp_path / "broken-model"
    model.mkdir()
    for file in demo.directory().iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    change(model)
    done = ftagent("serve", "--port", "0", "--model", str(model), "--json", directory=tmp_path)
    assert done.returncode == 3, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert len(lines) == 1, done.stderr
    assert "broken-model" in lines[0]
    assert words in lines[0]
    assert json.loads(done.stdout)["exit_code"] == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = ftagent("serve", "--device", "cuda", "--port", "0", directory=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "ftagent: device 'cuda' cannot be used: torch" in done.stderr
    assert done.stderr.rstrip().endswith("use cpu or auto")
    assert "Traceback" not in done.stderr

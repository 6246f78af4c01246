"""`ftagent convert` as it is typed: results on stdout, narration on stderr, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.command import ftagent
from tests.support.embedded import as_safetensors


def test_a_model_is_converted_and_checked(tmp_path: Path) -> None:
    source = as_safetensors(tmp_path / "source")
    done = ftagent("convert", str(source), "target", "--json", "--shard-size", "6MiB", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    files = sorted((tmp_path / "target").glob("*.ftw"))
    assert found["type"] == "converted"
    assert found["directory"] == "target"
    assert (found["shards"], found["banks"]) == (len(files), 8)
    assert len(files) == 3
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert done.stderr.splitlines()[-1].endswith("all of it read back and checked")
    done = ftagent("convert", "--check", "target", "--json", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)
    assert (checked["type"], checked["set"]) == ("checked", found["set"])
    with files[1].open("rb+") as opened:
        opened.seek(-5000, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
    done = ftagent("convert", "--check", "target", "--json", directory=tmp_path)
    assert done.returncode == 3
    assert json.loads(done.stdout)["exit_code"] == 3
    assert f"{files[1].name}: tensor " in done.stderr
    verify = {"FTAGENT_VERIFY_WEIGHTS": "1"}
    done = ftagent("chat", "-p", "Hello", "--model", "target", directory=tmp_path, extra=verify)
    assert done.returncode == 3
    assert "is damaged" in done.stderr


def test_what_cannot_be_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    for arguments, code, words in (
        (("convert", "nowhere", "there"), 3, "nowhere: no such model directory"),
        (("convert", "nowhere"), 2, "give the directory to write to"),
        (("convert", "nowhere", "there", "--shard-size", "many"), 2, "'many' is not a size"),
        (("convert", "nowhere", "there", "--shard-size", "7"), 3, "nowhere"),
        (("convert", "--check", "nowhere", "there"), 2, "--check takes one directory"),
        (("convert", "--check", "."), 3, "no *.ftw file"),
    ):
        done = ftagent(*arguments, directory=tmp_path)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert words in line

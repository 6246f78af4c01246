"""`ftagent doctor --agents`: each agent that is found does a small task, or is said not to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import ftagent
from tests.support.embedded import WEIGHTS

FAKE = '#!/bin/sh\n[ "$1" = --version ] && echo 99.0.0 && exit 0\n'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not WEIGHTS.exists(), reason="the embedded model's weights are not here"),
]


def fake(path: Path, text: str) -> str:
    path.write_text(FAKE + text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_file_decides(tmp_path: Path) -> None:
    """Of two agents one leaves the file behind; the other says so, and ends with exit code 0."""
    extra = {
        "PATH": "/usr/bin:/bin",
        "FTAGENT_PI": fake(tmp_path / "pi", "echo 4711 > number.txt\n"),
        "FTAGENT_QWEN": fake(tmp_path / "qwen", "echo 'the file is written' >&2\n"),
    }
    done = ftagent("doctor", "--quick", "--agents", "--json", directory=tmp_path, extra=extra, timeout_s=150)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stderr
    assert checks["pi"]["status"] == checks["pi runs"]["status"] == "ok"
    assert "did a small task in" in checks["pi runs"]["found"]
    assert checks["qwen-code runs"]["status"] == "warn"
    assert checks["qwen-code runs"]["found"] == "exit code 0, it said: the file is written"
    assert "claude-code runs" not in checks
    assert list((tmp_path / "home").glob("**/agents/**")) == [], "nothing of it stays"

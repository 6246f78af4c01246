"""The habits of the house that a machine can check: who imports whom, and how large a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
MOST_LINES, MOST_FUNCTION_LINES = 400, 60

# File, or file::function: why it may be larger. Kernels are exempt as a whole.
LARGER: dict[str, str] = {}


def test_imports_follow_the_contracts() -> None:
    """The contracts stand in pyproject.toml."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("ftagent.cli", {"torch", "textual", "pydantic", "fastapi"}),
        ("ftagent.settings", {"torch", "textual", "fastapi"}),
        ("ftagent.engine.api", {"torch", "textual", "numpy"}),
        ("ftagent.engine.options", {"torch", "textual", "numpy"}),
        ("ftagent.hub.store", {"torch", "textual", "huggingface_hub", "httpx2"}),
        ("ftagent.gateway.server", {"torch", "textual"}),
        ("ftagent.adapters.claude_code", {"torch", "textual", "fastapi"}),
        ("ftagent.adapters.process", {"torch", "textual", "fastapi"}),
        ("ftagent.answer", {"torch", "textual", "fastapi"}),
        ("ftagent.tui.chat", {"torch", "fastapi"}),
        ("ftagent.engine.engine", {"textual", "fastapi"}),
    ],
)
def test_an_import_brings_in_nothing_it_does_not_need(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & unwanted == set()


def sources() -> list[Path]:
    return [path for room in ("ftagent", "tests", "benchmarks") for path in (REPOSITORY / room).rglob("*.py")]


def too_large() -> Iterator[tuple[str, int]]:
    """Names and lines of files and functions over the limits, kernels left out."""
    for path in sources():
        name = path.relative_to(REPOSITORY).as_posix()
        if "/kernels/" in name:
            continue
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MOST_LINES:
            yield name, text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    yield f"{name}::{node.name}", lines


def test_no_file_and_no_function_is_too_large() -> None:
    found = dict(too_large())
    assert {name: lines for name, lines in found.items() if name not in LARGER} == {}
    assert set(LARGER) <= set(found), "an exception that is not needed any more"


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for path in (REPOSITORY / "ftagent").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.strip() and ast.get_docstring(ast.parse(text)) is None:
            silent.append(path.relative_to(REPOSITORY).as_posix())
    assert silent == []

"""Building, caching and loading the native library, on a source of one function; the ways it can fail."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftagent import paths
from ftagent.engine.machine import native

pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler")

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return NUMBER; }\n'


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sources of two files in a directory of their own, an empty cache, and nothing loaded."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "number.h").write_text("#define NUMBER 42\n")
    (sources / "answer.cpp").write_text('#include "number.h"\n' + SOURCE)
    monkeypatch.setattr(native, "SOURCES", sources)
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")
    native.load.cache_clear()
    yield tmp_path
    native.load.cache_clear()


def answer() -> int:
    library = native.load()
    assert library is not None
    return int(library.answer())


def built(room: Path) -> list[Path]:
    return sorted((room / "cache" / "native").iterdir())


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str]) -> None:
        raise AssertionError(f"compiled again: {command}")

    monkeypatch.setattr(native, "_run", refuse)


def test_built_once_and_then_taken_from_the_cache(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer() == 42
    assert len(built(room)) == 1, "the build leaves nothing else behind"
    forbid_compiling(monkeypatch)
    native.load.cache_clear()
    assert answer() == 42


@pytest.mark.parametrize("what", ["source", "header", "flags"])
def test_a_change_is_built_anew(room: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    assert answer() == 42
    native.load.cache_clear()
    if what == "source":
        (native.SOURCES / "answer.cpp").write_text(SOURCE.replace("NUMBER", "7"))
    elif what == "header":
        (native.SOURCES / "number.h").write_text("#define NUMBER 7\n")
    else:
        monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-UNUMBER"))
    assert answer() == (42 if what == "flags" else 7)
    assert len(built(room)) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text"])
def test_a_damaged_file_in_the_cache_is_built_again(
    room: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    assert answer() == 42
    (path,) = built(room)
    whole = path.read_bytes()
    flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    path.unlink()  # a new file: this process still maps the old one
    path.write_bytes({"empty": b"", "cut": whole[:9000], "flipped": flipped, "text": b"no library"}[damage])
    native.load.cache_clear()
    assert answer() == 42
    assert "is damaged and is built again" in caplog.text
    assert path.read_bytes()[-8:] == whole[-8:]


def test_without_a_compiler_one_warning_and_none(
    room: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(room))
    monkeypatch.delenv("CXX", raising=False)
    assert native.load() is None
    assert native.load() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no C++ compiler in PATH" in record.message
    assert "install g++" in record.message
    assert "torch instead" in record.message


def test_an_error_of_the_compiler_is_told(room: Path, caplog: pytest.LogCaptureFixture) -> None:
    (native.SOURCES / "wrong.cpp").write_text("int f() { return missing_name; }\n")
    assert native.load() is None
    assert "missing_name" in caplog.text
    assert len(caplog.records) == 1
    assert built(room) == []


def test_a_prebuilt_library_needs_no_compiler(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = native.build_into(native.SOURCES)
    assert path.parent == native.SOURCES
    monkeypatch.setenv("PATH", str(room))
    assert answer() == 42
    assert not (room / "cache").exists()


def test_the_state_says_how_loading_would_go(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.state() == "uncompiled"
    assert not (room / "cache").exists(), "looking builds nothing"
    assert answer() == 42
    assert native.state() == "cached"
    (native.SOURCES / "number.h").write_text("#define NUMBER 7\n")
    assert native.state() == "uncompiled"
    native.build_into(native.SOURCES)
    assert native.state() == "prebuilt"
    monkeypatch.setenv("PATH", str(room))
    monkeypatch.delenv("CXX", raising=False)
    assert native.state() == "prebuilt"
    (native.SOURCES / native.prebuilt_name()).unlink()
    assert native.state() == "missing"


def test_a_prebuilt_library_of_other_sources_is_passed_over(room: Path) -> None:
    native.build_into(native.SOURCES)
    (native.SOURCES / "number.h").write_text("#define NUMBER 43\n")
    assert answer() == 43


def test_a_cache_that_cannot_be_written_costs_a_warning(room: Path, caplog: pytest.LogCaptureFixture) -> None:
    (room / "cache").write_text("a file in the way")
    assert answer() == 42
    assert "compiled again at every start" in caplog.text


def test_a_compiler_without_an_instruction_set_leaves_its_file_empty(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = room / "old-g++"
    old.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-mavx512bf16*) echo "error: unrecognized option" >&2; exit 1;; esac\n'
        f'exec {native.find_compiler()} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    (native.SOURCES / "answer.cpp").unlink()
    (native.SOURCES / "answer_avx512bf16.cpp").write_text(
        "#ifdef __AVX512BF16__\n#define NUMBER 1\n#else\n#define NUMBER 2\n#endif\n" + SOURCE
    )
    assert answer() == 2


def test_two_processes_may_build_at_once(room: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ftagent import paths; "
        "from ftagent.engine.machine import native; "
        "native.SOURCES = Path(sys.argv[1]); paths.cache_dir = lambda: Path(sys.argv[2]); "
        "sys.stdin.read(1); sys.exit(native.load().answer())"
    )
    command = [sys.executable, "-c", code, str(native.SOURCES), str(room / "cache")]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write(b"!")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in both] == [42, 42]
    assert len(built(room)) == 1


def test_the_cache_is_the_users_alone(room: Path) -> None:
    assert answer() == 42
    assert os.stat(room / "cache" / "native").st_mode & 0o077 == 0

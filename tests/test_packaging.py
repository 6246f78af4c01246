"""What wheels and source distributions hold, built by hatchling without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ftagent.engine.machine import native

pytest.importorskip("hatchling")
pytest.importorskip("editables")

ROOT = Path(__file__).parent.parent
FILES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
SOURCES = {path.name for path in native.SOURCES.iterdir() if path.suffix in (".cpp", ".h")}
NATIVE = "ftagent/engine/machine/native/"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy without caches and without the embedded model's weights, which only cost time here."""
    copy = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.ftw", "*.so")
    shutil.copytree(ROOT / "ftagent", copy / "ftagent", ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(tree: Path, hook: str, **environment: str) -> Path:
    """The file that hatchling's `hook` leaves in an empty directory."""
    out = tree.parent / hook
    code = f"import sys; from hatchling import build; build.{hook}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(out)],
        cwd=tree,
        env={**os.environ, **environment},
        check=True,
        timeout=100,
    )
    (found,) = out.iterdir()
    return found


def libraries(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".so")]


def test_a_source_distribution_has_all_sources(tree: Path) -> None:
    with tarfile.open(build(tree, "build_sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {NATIVE + name for name in SOURCES} <= names
    assert "hatch_build.py" in names


@pytest.mark.parametrize(
    ("hook", "environment"),
    [
        ("build_wheel", {}),
        ("build_wheel", {"FTAGENT_PREBUILT": "1", "PATH": "/nowhere", "CXX": ""}),
        ("build_editable", {"FTAGENT_PREBUILT": "1"}),
    ],
)
def test_a_wheel_without_the_library_is_for_every_platform(
    tree: Path, hook: str, environment: dict[str, str]
) -> None:
    wheel = build(tree, hook, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not libraries(names)
    if hook == "build_wheel":
        assert {NATIVE + name for name in SOURCES} <= set(names)


@pytest.mark.slow
@pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler")
def test_a_prebuilt_library_is_shipped_and_loaded_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    before = {path.name for path in (tree / NATIVE).iterdir()}
    wheel = build(tree, "build_wheel", FTAGENT_PREBUILT="1")
    assert {path.name for path in (tree / NATIVE).iterdir()} == before, "the tree stays as it was"
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert libraries(names) == [NATIVE + native.prebuilt_name()]
    assert {NATIVE + name for name in SOURCES} <= set(names), "the sources say whether the library is theirs"
    code = (
        "import ftagent, sys; from ftagent.engine.machine import native; "
        "assert ftagent.__file__.startswith(sys.argv[1]); library = native.load(); "
        "assert library._name.startswith(sys.argv[1]), library; assert library.ft_cpu_features() >= 0"
    )
    environment = {
        "PATH": "/nowhere",
        "PYTHONPATH": str(tmp_path / "site"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")],
        env=environment,
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    assert not (tmp_path / "cache").exists()

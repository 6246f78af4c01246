"""What the doctor says about machines that are not this one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from ftagent.cli import cli
from ftagent.commands import doctor
from ftagent.engine.machine import native
from ftagent.engine.machine.gpus import Gpu
from ftagent.engine.machine.probe import Compiler, Cpu, Machine, Memory
from ftagent.engine.machine.profile import CpuFigures, Line, LinkFigures, Profile, fingerprint, store_profile
from ftagent.hub import store

GIB = 2**30
CARD = Gpu("Some Card", "GPU-1", 24 * GIB, 20 * GIB, (8, 9), "580.1", 1, 16, 4, 16)
MACHINE = Machine(
    Cpu("Some CPU", 14, 32, 16, 14.5, ("avx2", "amx_bf16"), 2**25),
    Memory(128 * GIB, 64 * GIB, 40 * GIB, 8 * GIB, "madvise"),
    Compiler("/usr/bin/g++", "g++ 12.2.0"),
    (CARD,),
    None,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftagent.paths.cache_dir", lambda: tmp_path / "cache")


def report(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(doctor, "probe", lambda: machine)
    done = CliRunner().invoke(cli, ["doctor", "--quick", "--json"], standalone_mode=False)
    assert done.exception is None
    found = json.loads(done.stdout)
    assert found["machine"]["cpu"]["cores"] == machine.cpu.cores
    return {check["name"]: check for check in found["checks"]}


def test_every_part_of_the_machine_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = report(MACHINE, monkeypatch)
    assert checks["cpu"]["found"] == "Some CPU, 14 cores by quota of 32, avx2 amx_bf16"
    assert checks["memory"]["found"] == "64.0 GiB, 40.0 GiB available"
    assert checks["huge pages"]["found"] == "madvise"
    assert checks["lockable"]["found"] == "8.0 GiB"
    assert "ulimit -l" in checks["lockable"]["advice"]
    assert checks["gpu"]["found"] == (
        "Some Card, 24.0 GiB, 20.0 GiB free, compute 8.9, PCIe 4 x16 (now 1 x16), driver 580.1"
    )
    assert checks["compiler"]["found"] == "g++ 12.2.0"
    assert "not measured" in checks["bandwidths"]["found"]
    names = ("cpu", "memory", "gpu", "compiler", "bandwidths")
    assert {checks[name]["status"] for name in names} == {"ok"}


def as_the_library_is(state: native.State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "state", lambda: state)


def run_checks(quick: bool) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor._native(quick)}


def test_without_a_library_and_a_compiler_the_fallback_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    as_the_library_is("missing", monkeypatch)
    (check,) = run_checks(quick=False).values()
    assert check.status == "warn"
    assert "torch computes the CPU's experts instead" in check.found
    assert "install g++" in check.advice


def test_a_quick_look_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise AssertionError("loaded")

    as_the_library_is("uncompiled", monkeypatch)
    monkeypatch.setattr(native, "load", refuse)
    (check,) = run_checks(quick=True).values()
    assert (check.status, check.found[:16]) == ("ok", "not compiled yet")


def test_a_library_that_does_not_build_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    as_the_library_is("uncompiled", monkeypatch)
    monkeypatch.setattr(native, "load", lambda: None)
    (check,) = run_checks(quick=False).values()
    assert check.status == "warn"
    assert "CXX" in check.advice


@pytest.mark.parametrize(
    ("state", "words"),
    [("prebuilt", "prebuilt"), ("cached", "compiled earlier"), ("uncompiled", r"compiled in \d+\.\d s")],
)
def test_how_the_library_was_come_by_and_which_kernels_run(
    state: native.State, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_the_library_is(state, monkeypatch)
    monkeypatch.setattr(native, "load", object)
    monkeypatch.setattr(doctor, "cpu_isas", lambda: ["scalar", "avx2"])
    checks = run_checks(quick=False)
    assert re.fullmatch(words, checks["native"].found)
    assert checks["kernels"].found == "avx2; no avx512, avx512bf16 here"


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (replace(CARD, capability=(7, 5)), "below compute 8.0"),
        (replace(CARD, pcie_width=8), "fewer lanes"),
        (replace(CARD, memory_free=4 * GIB), "nvidia-smi"),
    ],
)
def test_what_limits_a_gpu_is_said(card: Gpu, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = report(replace(MACHINE, gpus=(card,)), monkeypatch)["gpu"]
    assert check["status"] == "warn"
    assert words in check["advice"]


def test_a_torch_without_cuda_beside_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    assert doctor._torch(gpu=False).status == "ok"
    found = doctor._torch(gpu=True)
    assert found.status == "warn"
    assert "pip install torch" in found.advice


def test_no_gpu_is_a_fact_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = report(replace(MACHINE, gpus=(), no_gpu="no NVIDIA driver is loaded"), monkeypatch)
    assert checks["gpu"]["status"] == "ok"
    assert "no NVIDIA driver is loaded" in checks["gpu"]["found"]


def test_what_falls_short_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    poor = replace(
        MACHINE,
        cpu=replace(MACHINE.cpu, features=("sve",), quota=None, affinity=32, cores=32),
        memory=replace(MACHINE.memory, huge_pages="never"),
        compiler=None,
        gpus=(replace(CARD, pcie_width=8, memory_free=None, capability=None),),
    )
    checks = report(poor, monkeypatch)
    assert checks["cpu"]["found"] == "Some CPU, 32 cores (16 physical), sve"
    for name in ("cpu", "huge pages", "gpu", "compiler"):
        assert checks[name]["status"] == "warn"
        assert checks[name]["advice"]
    assert (
        "1.2 GiB"
        in (
            report(replace(MACHINE, memory=replace(MACHINE.memory, available=GIB)), monkeypatch)["memory"][
                "advice"
            ]
        )
    )


def test_measured_bandwidths_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    store_profile(
        Profile(
            fingerprint(MACHINE, CARD),
            "2026-12-01T00:00:00+00:00",
            14,
            148_000_000_000,
            (LinkFigures(9, Line(1, 55_000_000_000)),),
            (CpuFigures("bfloat16", 9, "native", Line(1, 120_000_000_000)),),
        )
    )
    assert report(MACHINE, monkeypatch)["bandwidths"]["found"] == (
        "2026-12-01, 14 threads, memory 148 GB/s, CPU 120 GB/s (bfloat16, native), link 55 GB/s"
    )


def test_pulled_models_are_named_and_what_is_missing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = report(MACHINE, monkeypatch)["models"]
    assert (found["status"], "`ftagent pull REPO`" in found["found"]) == ("ok", True)
    for name, complete in (("whole", True), ("begun", False)):
        directory = store.place(f"lab/{name}")
        directory.mkdir(parents=True)
        store.write_record(directory, store.Record(f"lab/{name}", "main", "0" * 40, complete))
    found = report(MACHINE, monkeypatch)["models"]
    assert (found["status"], found["found"]) == ("warn", "lab/begun (not whole), lab/whole")
    assert found["advice"] == "`ftagent pull lab/begun` goes on where it stopped"

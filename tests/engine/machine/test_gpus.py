"""GPUs as NVML and torch give them: a made-up NVML and torch here, the real ones on a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftagent.engine.machine import gpus
from ftagent.engine.machine.gpus import Gpu, device_gpu, find_gpus


class NvmlError(Exception):
    pass


class Nvml:
    """Two GPUs; the second does not tell its PCIe link."""

    NVMLError = NvmlError

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Card {handle}"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=24 * 2**30 + handle, free=2**30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 8, 9

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        if handle:
            raise NvmlError("not supported")
        return 1

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        if handle:
            raise NvmlError("not supported")
        return 4

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16


def with_driver(root: Path) -> Path:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/nvidiactl").touch()
    (root / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build\nGCC 12\n",
        encoding="utf-8",
    )
    return root


def test_without_a_driver_there_is_no_gpu_and_a_reason(tmp_path: Path) -> None:
    assert find_gpus(tmp_path) == ((), "no NVIDIA driver is loaded")


def test_nvml_gives_every_field_and_none_for_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found, reason = find_gpus(with_driver(tmp_path))
    assert reason is None
    assert found[0] == Gpu("Card 0", "GPU-0", 24 * 2**30, 2**30, (8, 9), "580.1", 1, 8, 4, 16)
    assert (found[1].pcie_generation, found[1].pcie_max_generation, found[1].pcie_width) == (None, None, 8)
    assert nvml.open == 0


def test_an_nvml_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert find_gpus(with_driver(tmp_path)) == ((), "the driver shows no device")

    def broken() -> None:
        raise NvmlError("driver mismatch")

    monkeypatch.setattr(nvml, "nvmlInit", broken)
    assert find_gpus(tmp_path) == ((), "NVML does not start: driver mismatch")


class Cuda:
    """What is used of torch.cuda, with one card at PCIe address 0000:0a:00.0."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 5, 8

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(
            name="Card", uuid="1-2", major=9, minor=0, pci_domain_id=0, pci_bus_id=10, pci_device_id=0
        )


def test_torch_and_sysfs_stand_in_for_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    monkeypatch.setattr(torch, "cuda", Cuda())
    device = with_driver(tmp_path) / "sys/bus/pci/devices/0000:0a:00.0"
    device.mkdir(parents=True)
    for name, text in (
        ("current_link_speed", "2.5 GT/s PCIe"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
    ):
        (device / name).write_text(text + "\n", encoding="ascii")
    found, reason = find_gpus(tmp_path)
    assert (reason, len(found)) == (None, 1)
    assert found[0] == Gpu("Card", "GPU-1-2", 8, 5, (9, 0), "580.126.09", 1, 16, 5, None)
    known = (Gpu("Card as NVML has it", "GPU-1-2", driver="580"),)
    assert device_gpu(0, known, tmp_path) == known[0]
    assert device_gpu(0, (), tmp_path) == found[0]
    assert device_gpu(1, known, tmp_path) is None


def test_a_torch_without_cuda_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    found, reason = find_gpus(with_driver(tmp_path))
    assert found == ()
    assert reason == f"torch {torch.__version__} is built without CUDA"


@pytest.mark.gpu
def test_this_machines_gpu_is_what_nvidia_smi_says() -> None:
    fields = "name,uuid,memory.total,driver_version,compute_cap,pcie.link.gen.max,pcie.link.width.max"
    line = subprocess.check_output(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"], text=True
    )
    name, uuid, total, driver, capability, generation, width = (part.strip() for part in line.split(","))
    seen, _ = find_gpus()
    gpu = next(gpu for gpu in seen if gpu.uuid == uuid)
    assert (gpu.name, gpu.driver) == (name, driver)
    assert gpu.capability == tuple(int(part) for part in capability.split("."))
    assert gpu.memory_total == pytest.approx(int(total) * 2**20, rel=0.02)
    for asked, told in ((gpu.pcie_max_generation, generation), (gpu.pcie_max_width, width)):
        assert asked is None or not re.fullmatch(r"\d+", told) or asked == int(told)


@pytest.mark.gpu
def test_both_sources_name_a_gpu_alike() -> None:
    by_torch, reason = gpus._from_torch(Path("/"))
    assert reason is None
    nvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    by_nvml, _ = gpus._from_nvml(nvml)
    names = {(gpu.name, gpu.uuid, gpu.driver) for gpu in by_nvml}
    assert {(gpu.name, gpu.uuid, gpu.driver) for gpu in by_torch} <= names

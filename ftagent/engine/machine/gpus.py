"""Which NVIDIA GPUs this machine has: from NVML where nvidia-ml-py is installed, else from torch and /sys.

Either source gives the same name and uuid, so what is stored under them stays found. No GPU is a fact, not
an error. Knows no speeds.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LEAST_CAPABILITY = (8, 0)  # of a device: the first that computes in BF16, as the kernels do

# One of these exists wherever a CUDA program can run: Linux's driver, or the one inside WSL.
_DEVICE_FILES = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")

# Transfers per second and lane in sysfs's words, by PCIe generation.
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Memory is in bytes; `uuid` has NVML's form (GPU-...); None is unknown.

    `pcie_*` is the link as it stands now and as it could be (an idle link is often trained down).
    """

    name: str
    uuid: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    capability: tuple[int, int] | None = None
    driver: str | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None


def find_gpus(root: Path = Path("/")) -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs in the order of the source that answered, and the reason when there are none."""
    if not any((root / name).exists() for name in _DEVICE_FILES):
        return (), "no NVIDIA driver is loaded"
    with contextlib.suppress(ImportError):
        return _from_nvml(importlib.import_module("pynvml"))
    return _from_torch(root)


def device_gpu(index: int, gpus: tuple[Gpu, ...], root: Path = Path("/")) -> Gpu | None:
    """The GPU that torch calls cuda:`index`, with what `gpus` knows about it; None when there is no such one.

    CUDA may number the devices otherwise than NVML does, or see fewer (CUDA_VISIBLE_DEVICES).
    """
    seen, _ = _from_torch(root)
    if index >= len(seen):
        return None
    return next((gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid == seen[index].uuid), seen[index])


def _from_nvml(nvml: Any) -> tuple[tuple[Gpu, ...], str | None]:
    """`nvml` is the module pynvml. What one device does not tell is None."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), f"NVML does not start: {error}"
    try:
        found = tuple(_nvml_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return (), f"NVML does not answer: {error}"
    finally:
        nvml.nvmlShutdown()
    return found, None if found else "the driver shows no device"


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: object) -> Any:
        with contextlib.suppress(nvml.NVMLError):
            return getattr(nvml, name)(*arguments)
        return None

    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        name=str(nvml.nvmlDeviceGetName(handle)),
        uuid=ask("nvmlDeviceGetUUID", handle),
        memory_total=None if memory is None else int(memory.total),
        memory_free=None if memory is None else int(memory.free),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        driver=ask("nvmlSystemGetDriverVersion"),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_max_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_max_width=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _from_torch(root: Path) -> tuple[tuple[Gpu, ...], str | None]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        return (), "torch finds no device" if built else f"torch {torch.__version__} is built without CUDA"
    driver = _driver(root)
    gpus = tuple(_torch_gpu(torch.cuda, index, root) for index in range(torch.cuda.device_count()))
    return tuple(replace(gpu, driver=driver) for gpu in gpus), None


def _torch_gpu(cuda: Any, index: int, root: Path) -> Gpu:
    """`cuda` is torch.cuda. The driver is left out."""
    properties = cuda.get_device_properties(index)
    free, total = cuda.mem_get_info(index)
    uuid = getattr(properties, "uuid", None)
    link = _pci_link(root, properties)
    return Gpu(
        name=properties.name,
        uuid=None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
        memory_total=int(total),
        memory_free=int(free),
        capability=(int(properties.major), int(properties.minor)),
        pcie_generation=link("current_link_speed", _generation),
        pcie_width=link("current_link_width", _width),
        pcie_max_generation=link("max_link_speed", _generation),
        pcie_max_width=link("max_link_width", _width),
    )


def _pci_link(root: Path, properties: Any) -> Callable[[str, Callable[[str], int | None]], int | None]:
    """A reader of this device's files under /sys/bus/pci."""
    domain, bus, device = (getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device"))
    address = f"{max(domain, 0):04x}:{max(bus, 0):02x}:{max(device, 0):02x}.0"

    def read(file: str, meaning: Callable[[str], int | None]) -> int | None:
        if bus < 0:
            return None
        with contextlib.suppress(OSError):
            return meaning((root / "sys/bus/pci/devices" / address / file).read_text(encoding="ascii"))
        return None

    return read


def _generation(text: str) -> int | None:
    """5 of "32.0 GT/s PCIe"."""
    return _GENERATIONS.get(text.split()[0]) if text.strip() else None


def _width(text: str) -> int | None:
    return int(text) if text.strip().isdigit() and int(text) else None


def _driver(root: Path) -> str | None:
    """The version in /proc/driver/nvidia/version, as NVML would give it."""
    with contextlib.suppress(OSError):
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"\s(\d+(?:\.\d+)+)\s", text)
        return match[1] if match else None
    return None

"""What sizes of kernels are chosen by: a few numbers of a CUDA device. Knows no kernels."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton

from ftagent.engine.kernels.gpu.launch import INTERPRETED, processors


class Device(NamedTuple):
    """capability is major * 10 + minor; shared is the bytes of shared memory that a program may use."""

    capability: int
    shared: int
    processors: int  # multiprocessors


@cache
def describe(device: torch.device) -> Device:
    """The numbers of a CUDA device; under the interpreter a Hopper with few multiprocessors."""
    if INTERPRETED or device.type != "cuda":
        return Device(90, 227 << 10, processors(device))
    index = torch.cuda.current_device() if device.index is None else device.index
    major, minor = torch.cuda.get_device_capability(index)
    shared: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return Device(major * 10 + minor, shared, processors(device))

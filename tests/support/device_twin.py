"""A device runner on CPU tensors: Triton's interpreter, a loopback link, real native threads.

Import it only where TRITON_INTERPRET=1 was set before Triton was first imported, or where there is a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ftagent.engine.device.runner import DeviceRunner
from ftagent.engine.load import build_device, open_model
from ftagent.engine.options import EngineOptions, Mode


def load_on(
    device: torch.device, directory: Path, options: EngineOptions, dtype: torch.dtype
) -> DeviceRunner:
    """The model of `directory` on `device`, which may be the CPU: then by the interpreter."""
    opened = open_model(directory, replace(options, device="cpu"), dtype)
    return build_device(replace(opened, device=device, options=options))


def twin_options(
    mode: Mode, experts: str | None = None, context: int = 128, max_running: int = 1
) -> EngineOptions:
    return EngineOptions(mode=mode, experts=experts, context=context, threads=1, max_running=max_running)

"""The one place that launches Triton kernels: programmatic dependent launch where the device has it.

With programmatic dependent launch (PDL; CUDA C programming guide, "Programmatic Dependent Launch and
Synchronization") a kernel may start while the one before it on the stream still runs. So every kernel here

* takes a constexpr `PDL`, which `launch` sets;
* calls `wait_for_inputs(PDL)` before it reads anything that a kernel before it wrote, and before its first
  write: a kernel further back may not have finished reading until then. Weights and tables that no kernel
  writes may be read earlier, and so may what the host writes before a step: `rows`, positions, page tables;
* calls `let_next_start(PDL)` as early as it likes: the next kernel waits by itself;
* may return without waiting in some programs, as long as at least one program of each launch waits.

Knows no shapes and no kernels.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
PDL_CAPABILITY = (9, 0)
INTERPRETER_PROCESSORS = 4  # what the interpreter passes for: few programs, so tests stay short

_programmatic = True


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Block until every kernel before this one has finished and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Allow the next kernel to start once all programs of this one have come here or returned."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@cache
def _capable(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= PDL_CAPABILITY


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def processors(device: torch.device) -> int:
    """Multiprocessors of `device`: what tile sizes are chosen by."""
    return INTERPRETER_PROCESSORS if device.type != "cuda" else _processors(device)


def programmatic(device: torch.device) -> bool:
    """Whether launches on `device` are programmatic now."""
    return _programmatic and device.type == "cuda" and not INTERPRETED and _capable(device)


@contextmanager
def plain_launches() -> Iterator[None]:
    """Launch without PDL inside: to compare, or to look for a missing wait."""
    global _programmatic
    before, _programmatic = _programmatic, False
    try:
        yield
    finally:
        _programmatic = before


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int = 4, **constants: Any) -> None:
    """Start `kernel` on `grid` programs on the current stream of the device of the first tensor in `args`.

    `constants` are the kernel's constexpr arguments (without PDL) and compiler options such as num_stages.
    Raises ValueError for tensors that are not on a CUDA device outside the interpreter.
    """
    device = next(value.device for value in args if isinstance(value, torch.Tensor))
    if device.type != "cuda" and not INTERPRETED:
        raise ValueError(
            f"{kernel.__name__}: tensors on {device} need TRITON_INTERPRET=1 before the first import"
        )
    if programmatic(device):
        constants["launch_pdl"] = True
    kernel[grid](*args, PDL=programmatic(device), num_warps=warps, **constants)

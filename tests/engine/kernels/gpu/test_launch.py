"""Where launches are programmatic, and that it changes no bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ftagent.engine.kernels.gpu.launch import plain_launches, processors, programmatic
from ftagent.engine.kernels.gpu.linear import embed, linear_add, norm_linear

ON_CPU = """
import torch
from ftagent.engine.kernels.gpu.linear import embed
rows = torch.ones(1, dtype=torch.int32)
embed(rows, torch.zeros(4, 8), torch.zeros(1, 8), rows)
"""


def test_host_tensors_outside_the_interpreter_are_refused() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run([sys.executable, "-c", ON_CPU], env=environment, text=True, capture_output=True)
    assert child.returncode == 1
    assert "ValueError: _embed: tensors on cpu need TRITON_INTERPRET=1" in child.stderr


def test_the_interpreter_launches_plainly() -> None:
    host = torch.device("cpu")
    assert not programmatic(host)
    assert processors(host) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_chain_gives_the_same_bits_either_way(device: torch.device) -> None:
    assert programmatic(device) == (torch.cuda.get_device_capability(device) >= (9, 0))
    with plain_launches():
        assert not programmatic(device)
        expected = chain(device)
    for _ in range(20):
        assert torch.equal(chain(device), expected)


def chain(device: torch.device) -> torch.Tensor:
    """A residual after forty layers of products that need all of the one before."""
    torch.manual_seed(0)
    table = torch.randn(9, 2048, device=device, dtype=torch.bfloat16)
    wide = torch.randn(4096, 2048, device=device).mul(0.02).bfloat16()
    narrow = torch.randn(2048, 4096, device=device).mul(0.02).bfloat16()
    norm = torch.ones(2048, device=device)
    tokens = torch.tensor([3, 8, 1], dtype=torch.int32, device=device)
    rows = torch.tensor([3], dtype=torch.int32, device=device)
    x = torch.empty(3, 2048, device=device)
    flat = torch.empty(3, 4096, device=device)
    inner = torch.empty(3, 4096, device=device, dtype=torch.bfloat16)
    embed(tokens, table, x, rows)
    for _ in range(40):
        norm_linear(x, norm, 1e-6, wide, flat, None, rows)
        inner.copy_(flat)
        linear_add(inner, narrow, x, rows)
    return x

"""Triton kernels run natively where there is a CUDA device, and under the interpreter elsewhere.

The interpreter must be chosen before the kernels are imported, hence here and not in a fixture.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session: the interpreter works on CPU tensors."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

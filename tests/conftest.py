"""Triton kernels run natively where there is a CUDA device, and under the interpreter elsewhere.

The interpreter must be chosen before anything imports Triton, as transformers does: hence here, before all
tests are collected, and not in a fixture. A test says
that it runs kernels by asking for `device`: with a CUDA device it then carries the mark `gpu`, so that
`pytest -m gpu` is all that needs the device and nothing else.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session: the interpreter works on CPU tensors."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = torch.cuda.is_available()
    for item in items:
        if there and isinstance(item, pytest.Function) and "device" in item.fixturenames:
            item.add_marker(pytest.mark.gpu)
        elif not there and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))

"""Triton without a GPU runs under its interpreter, which must be chosen before Triton is first imported."""

from __future__ import annotations

import pytest
import torch

from tests.engine.kernels.conftest import *  # noqa: F403


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

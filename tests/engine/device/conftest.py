"""Triton without a GPU runs under its interpreter, which must be chosen before Triton is first imported."""

from __future__ import annotations

from tests.engine.kernels.conftest import device, one_thread

__all__ = ["device", "one_thread"]

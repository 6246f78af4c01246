"""The fused prefill path runs Triton kernels: natively on a CUDA device, interpreted elsewhere.

The interpreter must be chosen before the kernels are imported, hence here and not in a fixture.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

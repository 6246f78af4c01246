"""Triton kernels for CUDA devices of capability 8.0 and later.

A decode kernel takes one step of up to eight rows, a prefill kernel one chunk of tokens. All launches go
through `launch.launch`. They also run on CPU tensors under Triton's interpreter (TRITON_INTERPRET=1 in the
environment before the first import), which is how they are tested without a device. They know tensors and
shapes, no requests, pools or models.
"""

"""What the machine's BLAS promises: whether a row of a product depends on the rows beside it.

True for MKL on AVX2. Where it is false, tests of independent rows fall back from equal bits to a tolerance.
"""

from __future__ import annotations

import functools

import torch

from ftagent.engine.kernels.linear import matrix_product, vector_products


@functools.cache
def rows_are_independent() -> bool:
    generator = torch.Generator().manual_seed(0)
    for out, inner in ((64, 64), (211, 64), (33, 72)):
        x = torch.randn(100, inner, generator=generator)
        weight = torch.randn(out, inner, generator=generator)
        vectors = torch.cat([vector_products(row.unsqueeze(0), weight) for row in x])
        matrix = matrix_product(x, weight)
        for begin, end in ((0, 1), (1, 4), (3, 8), (5, 38), (0, 64)):
            if not torch.equal(vector_products(x[begin:end], weight), vectors[begin:end]):
                return False
            if not torch.equal(matrix_product(x[begin:end], weight), matrix[begin:end]):
                return False
    return True


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits where the BLAS allows it, else nearly equal."""
    if rows_are_independent():
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)

"""Products whose rows do not see each other: the torch reference that other devices are tested against.

A matrix-vector product and a matrix product sum in different orders, and a matrix product that leaves a
thread fewer than four rows in a third. So decode rows always take the first kind, one row at a time or in a
batch of vectors, and prefill rows the second, padded until every thread has four rows: with the BLAS of
torch's CPU builds each row then gives the same bits in any company.

On a CUDA device a step through these functions is a prefill, and every product is one call of the library.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

MIN_ROWS = 4


def vector_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, in] times weight [out, in]: on the CPU each row as a matrix-vector product."""
    rows = x.shape[0]
    if rows == 1 or x.is_cuda:
        return F.linear(x, weight)
    return torch.bmm(x.unsqueeze(1), weight.t().expand(rows, -1, -1)).squeeze(1)


def matrix_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, in] times weight [out, in]: on the CPU a product of at least MIN_ROWS rows for each thread."""
    if x.is_cuda:
        return F.linear(x, weight)
    rows = x.shape[0]
    unit = MIN_ROWS * torch.get_num_threads()
    padding = -rows % unit if rows < 4 * unit else 0
    if not padding:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, padding)), weight)[:rows]


def project(x: torch.Tensor, weight: torch.Tensor, decode: int) -> torch.Tensor:
    """x [rows, in] times weight [out, in]; the first `decode` rows are decode rows."""
    rows = x.shape[0]
    if decode == rows:
        return vector_products(x, weight)
    if decode == 0:
        return matrix_product(x, weight)
    out = x.new_empty(rows, weight.shape[0])
    out[:decode] = vector_products(x[:decode], weight)
    out[decode:] = matrix_product(x[decode:], weight)
    return out

"""Row products: right, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftagent.engine.kernels.linear import matrix_product, project, vector_products
from tests.engine.kernels.blas import rows_are_independent


@pytest.mark.parametrize(("rows", "decode"), [(1, 1), (1, 0), (3, 3), (3, 0), (9, 4), (40, 8)])
def test_products_are_right(rows: int, decode: int) -> None:
    x, weight = torch.randn(rows, 24), torch.randn(13, 24)
    expected = x.double() @ weight.double().t()
    torch.testing.assert_close(project(x, weight, decode).double(), expected, rtol=0, atol=1e-5)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.skipif(not rows_are_independent(), reason="this BLAS sums a row differently beside other rows")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [(64, 64), (224, 256), (33, 72)])
def test_a_row_gives_the_same_bits_in_any_company(size: tuple[int, int]) -> None:
    out, inner = size
    x, weight = torch.randn(300, inner), torch.randn(out, inner)
    vectors = torch.cat([vector_products(row.unsqueeze(0), weight) for row in x])
    matrix = matrix_product(x, weight)
    for rows in (*range(1, 40), 64, 65, 127, 200):
        for begin in (0, 1, 3, 90):
            some = slice(begin, begin + rows)
            assert torch.equal(vector_products(x[some], weight), vectors[some])
            assert torch.equal(matrix_product(x[some], weight), matrix[some])

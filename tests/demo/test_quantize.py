"""FP8 rounding in blocks of 128x128 against a plain loop and against its own bound."""

from __future__ import annotations

import pytest
import torch

from ftagent.demo.training.network import dequantize, quantize, rounded

SHAPES = [(128, 128), (112, 256), (300, 200), (1, 5), (3, 130, 129)]


@pytest.mark.parametrize("shape", SHAPES)
def test_codes_and_scales_equal_a_loop_over_blocks(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape)
    codes, scales = quantize(weight)
    assert codes.dtype == torch.float8_e4m3fn
    flat = weight.reshape(-1, *shape[-2:])
    for matrix, found_codes, found_scales in zip(
        flat, codes.reshape(flat.shape), scales.reshape(-1, *scales.shape[-2:]), strict=True
    ):
        for i in range(0, shape[-2], 128):
            for j in range(0, shape[-1], 128):
                block = matrix[i : i + 128, j : j + 128]
                scale = block.abs().max() / 448.0
                assert found_scales[i // 128, j // 128] == scale
                expected = (block / scale).to(torch.float8_e4m3fn)
                assert torch.equal(found_codes[i : i + 128, j : j + 128].float(), expected.float())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_trip_stays_within_half_a_step(shape: tuple[int, ...]) -> None:
    """E4M3 has three bits after the point: an error of 1/16 of the value, or of a subnormal half step."""
    torch.manual_seed(1)
    weight = torch.randn(shape)
    codes, scales = quantize(weight)
    back = dequantize(codes, scales)
    largest_scale = scales.max()
    bound = torch.maximum(weight.abs() / 16, largest_scale * 2**-10) * 1.0001
    assert bool(((back - weight).abs() <= bound).all())


def test_representable_values_come_back_exactly() -> None:
    torch.manual_seed(2)
    bits = torch.randint(0, 127, (256, 384), dtype=torch.uint8)  # 127 is not a number
    signs = torch.randint(0, 2, bits.shape).float() * 2 - 1
    values = bits.view(torch.float8_e4m3fn).float() * signs
    values[::128, ::128] = 448.0  # each block's largest, so that its scale is the power of two below
    exact = values * 0.25
    assert torch.equal(dequantize(*quantize(exact)), exact)


def test_zeros_and_gradients_pass() -> None:
    weight = torch.zeros(130, 4, requires_grad=True)
    out = rounded(weight)
    assert not out.any()
    gradient = torch.randn(130, 4)
    out.backward(gradient.to(out.dtype))  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, gradient.to(out.dtype).float())

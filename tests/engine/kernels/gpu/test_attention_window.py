"""Decode attention over rings and with sinks, against float64 over the tokens that a window holds."""

from __future__ import annotations

import pytest
import torch

from ftagent.engine.context.windows import WindowRings, WindowShape
from ftagent.engine.kernels.gpu.attention import PAGE, AttentionSpec, decode_attention

SLOTS = 5


def history(spec: AttentionSpec, rings: WindowRings, slot: int, position: int) -> torch.Tensor:
    """Write `position` tokens into a slot; all of them [2 * kv_heads, position, d]."""
    rows = torch.randn(2 * spec.kv_heads, position, spec.head_dim) * 2
    stored = rows.to(rings.stored.dtype)
    rings.write(0, slot, 0, stored.to(rings.stored.device))
    return stored.double()


def exact(
    spec: AttentionSpec, flat: torch.Tensor, past: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """float64 [heads, d]: without norms and rotation, over the last tokens and the new one."""
    heads = flat.double().view(-1, spec.head_dim)
    query, new = heads[: spec.heads], heads[spec.heads :].unsqueeze(1)
    seen = torch.cat((past, new), dim=1)
    seen = seen[:, -spec.window :] if spec.window else seen
    keys, values = seen.repeat_interleave(spec.heads // spec.kv_heads, dim=0).chunk(2)
    scores = torch.einsum("hd,htd->ht", query, keys) * spec.scale
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().unsqueeze(1)), dim=1)
        values = torch.cat((values, torch.zeros_like(values[:, :1])), dim=1)
    return torch.einsum("ht,htd->hd", torch.softmax(scores, -1), values)


@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("with_sinks", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [64, 128])
def test_a_ring_holds_what_a_row_sees(
    device: torch.device, window: int, dtype: torch.dtype, with_sinks: bool, splits: int
) -> None:
    torch.manual_seed(window + splits)
    spec = AttentionSpec(4, 2, 16, 0, 0.25, 0.0, False, normed=False, window=window, sinks=with_sinks)
    rings = WindowRings(WindowShape(1, 4, 16, window), SLOTS, dtype, device)
    rings.stored.fill_(torch.nan)
    positions = [0, 1, window - 1, window, 3 * window + 17]
    pasts = [history(spec, rings, slot, position) for slot, position in enumerate(positions)]
    flat = (torch.randn(SLOTS, spec.width) * 2).to(dtype).float().to(device)
    sinks = torch.randn(4, device=device) * 2 if with_sinks else None
    each = window // PAGE.value
    table = torch.arange(SLOTS * each, dtype=torch.int32, device=device).view(SLOTS, each)
    partial = torch.full((SLOTS, 4, splits, 16), torch.nan, device=device)
    lse = torch.full((SLOTS, 4, splits), torch.nan, device=device)
    out = torch.full((SLOTS, 64), torch.nan, dtype=dtype, device=device)
    none = torch.zeros(1, device=device)
    decode_attention(
        flat, spec, None, none, none, torch.tensor(positions, dtype=torch.int32, device=device), table,
        rings.layer(0), partial, lse, out, torch.tensor([SLOTS], dtype=torch.int32, device=device), sinks,
    )  # fmt: skip
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for slot, position in enumerate(positions):
        expected = exact(spec, flat[slot].cpu(), pasts[slot], None if sinks is None else sinks.cpu())
        torch.testing.assert_close(
            out[slot].cpu().double().view_as(expected), expected, rtol=tolerance, atol=tolerance
        )
        new = flat[slot].cpu().view(-1, 16)[4:].unsqueeze(1)
        written = rings.seen(0, slot, position)[:, position % window].cpu().float().unsqueeze(1)
        torch.testing.assert_close(written, new, rtol=0, atol=0)


def test_sinks_where_nothing_is_hidden(device: torch.device) -> None:
    """The pages of a full layer, of which the last is filled in part."""
    torch.manual_seed(0)
    spec = AttentionSpec(4, 2, 16, 0, 0.25, 0.0, False, normed=False, sinks=True)
    kv = torch.randn(4, 4 * PAGE.value, 16, device=device)
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32, device=device)
    position = 2 * PAGE.value + 9
    places = [int(table[0, t // PAGE.value]) * PAGE.value + t % PAGE.value for t in range(position)]
    past = kv[:, places].cpu().double()
    flat = torch.randn(1, spec.width, device=device)
    sinks = torch.tensor([-3.0, 0.0, 4.0, 40.0], device=device)
    for splits in (1, 3):
        partial, lse = torch.zeros(1, 4, splits, 16, device=device), torch.zeros(1, 4, splits, device=device)
        out, none = torch.zeros(1, 64, device=device), torch.zeros(1, device=device)
        live = torch.ones(1, dtype=torch.int32, device=device)
        at = torch.tensor([position], dtype=torch.int32, device=device)
        decode_attention(flat, spec, None, none, none, at, table, kv, partial, lse, out, live, sinks)
        expected = exact(spec, flat[0].cpu(), past, sinks.cpu())
        torch.testing.assert_close(out[0].cpu().double().view(4, 16), expected, rtol=1e-5, atol=1e-5)


def test_a_window_that_is_no_whole_page_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 100 tokens: whole pages of 64 can be done"):
        AttentionSpec(4, 2, 16, 0, 0.25, 0.0, False, window=100)

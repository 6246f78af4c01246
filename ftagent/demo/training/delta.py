"""The gated delta rule for training: by steps (the definition) and in chunks (parallel over the row).

All tensors are [rows, length, heads, width]; g (log decay) and beta [rows, length, heads]; q and k come
normalised, q scaled. Source: Yang et al. 2024, "Gated Delta Networks" (arXiv 2412.06464), equations 8 to 10.
Knows no layer: `network` makes the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def by_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One position after the other: decay the state, correct it towards v, read it with q."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        seen = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], (v[:, t] - seen) * beta[:, t, :, None])
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def scan(a: Tensor, b: Tensor) -> Tensor:
    """s[i] = a[i] @ s[i-1] + b[i] with s[-1] = 0, along dimension -3, by odd-even reduction.

    a [..., n, d, d], b [..., n, d, e] -> s [..., n, d, e]; depth 2 log2(n), work about 3 n products.
    """
    n = b.shape[-3]
    if n == 1:
        return b
    if n % 2:
        a, b = F.pad(a, (0, 0, 0, 0, 0, 1)), F.pad(b, (0, 0, 0, 0, 0, 1))
    even_a, odd_a = a[..., ::2, :, :], a[..., 1::2, :, :]
    even_b, odd_b = b[..., ::2, :, :], b[..., 1::2, :, :]
    odd = scan(odd_a @ even_a, odd_a @ even_b + odd_b)
    before = F.pad(odd[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    even = even_a @ before + even_b
    return torch.stack([even, odd], -3).flatten(-4, -3)[..., :n, :, :]


def _cut(x: Tensor) -> Tensor:
    """[rows, length, heads, width] -> float32 [rows, heads, chunks, CHUNK, width], zero-padded at the end."""
    x = F.pad(x.float(), (0, 0, 0, 0, 0, -x.shape[1] % CHUNK))
    return torch.unflatten(x, 1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)


def _within(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What each chunk does on its own: (reader, scores, u, w, step, gain), each [rows, heads, chunks, ., .].

    state' = step @ state + gain; output = reader @ state + scores @ (u - w @ state).
    """
    q, k, v, g, beta = (_cut(x) for x in (q, k, v, g[..., None], beta[..., None]))
    total = g.cumsum(-2)  # log decay since the chunk's start, [..., CHUNK, 1]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (total - total.mT).masked_fill(~lower, -torch.inf).exp()
    eye = torch.eye(CHUNK, device=q.device)
    strict = k @ k.mT * decay * beta * (lower & ~lower.mT)
    both = torch.cat([v * beta, k * beta * total.exp()], -1)
    solved = torch.linalg.solve_triangular(eye + strict, both, upper=False, unitriangular=True)
    u, w = torch.split(solved, [v.shape[-1], k.shape[-1]], -1)
    end = total[..., -1:, :]
    fading = (k * (end - total).exp()).mT
    step = end.exp() * torch.eye(k.shape[-1], device=q.device) - fading @ w
    return q * total.exp(), q @ k.mT * decay, u, w, step, fading @ u


def _read(reader: Tensor, scores: Tensor, u: Tensor, w: Tensor, after: Tensor) -> Tensor:
    """Outputs [rows, length, heads, value] from the chunks' parts and the state after each chunk."""
    state = F.pad(after[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    o = reader @ state + scores @ (u - w @ state)
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2)


def in_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The same as `by_step`: within a chunk by a triangular solve, between chunks by `scan`."""
    within, read = _compiled() if q.is_cuda else (_within, _read)
    reader, scores, u, w, step, gain = within(q, k, v, g, beta)
    return read(reader, scores, u, w, scan(step, gain))[:, : q.shape[1]]


@functools.cache
def _compiled() -> tuple[Callable[..., tuple[Tensor, ...]], Callable[..., Tensor]]:
    """The parts within chunks, fused; torch loads its compiler with this, so only where it pays."""
    return torch.compile(_within), torch.compile(_read)

"""The gated delta rule in its two forms: one token at a time, and in chunks of 64.

Yang et al., "Gated Delta Networks" (arXiv 2412.06464). Per value head, with state S [dk, dv], decay exp(g)
and step size beta: S <- exp(g) S; S <- S + k (beta (v - k^T S))^T; o = S^T q. All in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

CHUNK = 64
FLOOR = torch.tensor(1e-3)  # sqrt of the 1e-6 under the root of `unit_length`


def unit_length(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last dimension."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.hypot(length, FLOOR)


class DeltaInputs(NamedTuple):
    """Rows of the rule: query, key [rows, heads, dk] (unit length, query scaled), value [rows, heads, dv],
    decay (the log g) and beta [rows, heads]. Rows are requests in a step, tokens in a chunk."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor

    def rows(self, begin: int, end: int) -> DeltaInputs:
        return DeltaInputs(*(part[begin:end] for part in self))


def recurrent_step(inputs: DeltaInputs, state: torch.Tensor) -> torch.Tensor:
    """One token of each of several requests. `state` [rows, heads, dk, dv] is advanced in place.

    Returns [rows, heads, dv].
    """
    query, key, value, decay, beta = inputs
    rows, heads, key_dim, value_dim = state.shape
    flat = state.view(rows * heads, key_dim, value_dim)
    flat.mul_(decay.exp().view(-1, 1, 1))
    keys = key.reshape(-1, 1, key_dim)
    predicted = torch.bmm(keys, flat)  # [rows * heads, 1, dv]
    correction = (value.reshape(-1, 1, value_dim) - predicted) * beta.reshape(-1, 1, 1)
    flat.addcmul_(keys.transpose(1, 2), correction)
    return torch.bmm(query.reshape(-1, 1, key_dim), flat).view(rows, heads, value_dim)


def chunked(inputs: DeltaInputs, state: torch.Tensor) -> torch.Tensor:
    """All tokens of one request. `state` [heads, dk, dv] is advanced in place. Returns [tokens, heads, dv].

    Within a chunk the corrections solve a unit lower triangular system, (I + tril(beta k k^T * decays)) U =
    beta v, so a chunk costs a few matrix products and only the state is carried from chunk to chunk.
    """
    query, key, value, decay, beta = inputs
    tokens, heads, value_dim = value.shape
    q, k, v = (_by_chunk(x) for x in (query, key, value))  # [heads, chunks, 64, d]
    log_decay = _by_chunk(decay.unsqueeze(-1)).squeeze(-1).cumsum(-1)  # [heads, chunks, 64]
    step = _by_chunk(beta.unsqueeze(-1))  # padding has step 0 and decay 1: it leaves the state alone
    between = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).tril_().exp_().tril_()  # j to i, for j <= i
    from_start = log_decay.exp().unsqueeze(-1)
    stepped_k = k * step
    system = torch.matmul(stepped_k, k.transpose(-1, -2)).mul_(between)
    right = torch.cat((v * step, stepped_k * from_start), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, reading = solved.split((value_dim, key.shape[-1]), dim=-1)
    within = torch.matmul(q, k.transpose(-1, -2)).mul_(between)
    q = q * from_start
    to_end = (log_decay[..., -1:] - log_decay).exp_().unsqueeze(-1)
    writing = (k * to_end).transpose(-1, -2)
    whole = log_decay[..., -1].exp().view(heads, -1, 1, 1)
    out = torch.empty_like(own)
    for chunk in range(own.shape[1]):
        corrections = torch.baddbmm(own[:, chunk], reading[:, chunk], state, alpha=-1)
        torch.baddbmm(torch.bmm(within[:, chunk], corrections), q[:, chunk], state, out=out[:, chunk])
        state.mul_(whole[:, chunk]).baddbmm_(writing[:, chunk], corrections)
    return out.reshape(heads, -1, value_dim).transpose(0, 1)[:tokens].contiguous()


def _by_chunk(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, d] to float32 [heads, chunks, 64, d], padded with zeros."""
    tokens, heads, size = x.shape
    chunks = -(-tokens // CHUNK)
    padded = x.new_zeros(heads, chunks * CHUNK, size, dtype=torch.float32)
    padded[:, :tokens] = x.transpose(0, 1)
    return padded.view(heads, chunks, CHUNK, size)

"""The embedded model as a trainable network: `qwen3_5_moe` as the engine runs it, arranged for long rows.

Experts are computed densely and masked by the router (cheap at this size, and exact). Weights of linear
layers pass through FP8 on the way forward, so that the shipped rounding is trained in (straight-through
estimator, Bengio et al. 2013, arXiv 1308.3432). Knows no tokens, no loss and no file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ftagent.demo.training import delta
from ftagent.demo.training.shape import Shape

BLOCK = 128
FP8_MAX = 448.0
COMPUTE = torch.bfloat16  # activations and rounded weights; a test sets float32 to compare with transformers


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 E4M3 codes and float32 scales of 128x128 blocks over the last two dimensions.

    weight [..., out, in]; scales [..., ceil(out/128), ceil(in/128)]; value = code * scale.
    """
    rows, cols = weight.shape[-2:]
    pad = F.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    # [..., row blocks, 128, column blocks, 128]
    blocks = torch.unflatten(torch.unflatten(pad, -1, (-1, BLOCK)), -3, (-1, BLOCK))
    scales = blocks.abs().amax(dim=(-3, -1)).clamp(min=1e-8) / FP8_MAX
    scaled = (blocks / scales[..., :, None, :, None]).flatten(-2).flatten(-3, -2)
    return scaled[..., :rows, :cols].to(torch.float8_e4m3fn), scales


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 values of `quantize`'s result."""
    rows, cols = codes.shape[-2:]
    spread = scales.repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :cols]
    return codes.float() * spread


class Rounded(torch.autograd.Function):
    """Weights as FP8 will hold them; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: object, weight: Tensor) -> Tensor:
        return dequantize(*quantize(weight)).to(COMPUTE)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient.float()


def rounded(weight: Tensor) -> Tensor:
    """`Rounded`, typed."""
    result: Tensor = Rounded.apply(weight)  # type: ignore[no-untyped-call]
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMSNorm over the last dimension: x / rms * (1 + weight)."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight)).to(x.dtype)


def _parameter(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * std)


def causal_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Depthwise causal convolution and SiLU. x [B, T, C]; weight [C, taps], the last tap on the present."""
    taps = weight.shape[1]
    total = x * weight[:, taps - 1]
    for back in range(1, taps):
        total = total + F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] * weight[:, taps - 1 - back]
    return F.silu(total)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule of whole rows, outside the compiled parts."""
    return delta.in_chunks(q, k, v, g, beta).to(v.dtype)


class DeltaNet(nn.Module):
    """Gated delta net (Yang et al. 2024, arXiv 2412.06464) as in Qwen3.5."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        std = shape.hidden**-0.5
        width = shape.value_heads * shape.value_dim
        self.in_proj_qkv = _parameter(shape.qkv_width, shape.hidden, std=std)
        self.in_proj_z = _parameter(width, shape.hidden, std=std)
        self.in_proj_b = _parameter(shape.value_heads, shape.hidden, std=std)
        self.in_proj_a = _parameter(shape.value_heads, shape.hidden, std=std)
        self.conv1d = _parameter(shape.qkv_width, shape.conv, std=0.3)
        self.A_log = nn.Parameter(torch.log(torch.linspace(1.0, 8.0, shape.value_heads)))
        self.dt_bias = nn.Parameter(torch.linspace(-6.0, -2.0, shape.value_heads))
        self.norm = nn.Parameter(torch.ones(shape.value_dim))
        self.out_proj = _parameter(shape.hidden, width, std=std / (2 * shape.layers) ** 0.5)

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, g, beta of the delta rule and the output gate z, from x [B, T, hidden]."""
        s = self.shape
        mixed = causal_conv(F.linear(x, rounded(self.in_proj_qkv)), self.conv1d.to(x.dtype))
        widths = [s.key_heads * s.key_dim] * 2 + [s.value_heads * s.value_dim]
        q, k, v = torch.split(mixed, widths, -1)
        q = _unit(torch.unflatten(q, -1, (s.key_heads, s.key_dim))) * s.key_dim**-0.5
        k = _unit(torch.unflatten(k, -1, (s.key_heads, s.key_dim)))
        beta = F.linear(x, self.in_proj_b.to(x.dtype)).float().sigmoid()
        step = F.softplus(F.linear(x, self.in_proj_a.to(x.dtype)).float() + self.dt_bias)
        g = -self.A_log.exp() * step
        v = torch.unflatten(v, -1, (s.value_heads, s.value_dim))
        return q.to(x.dtype), k.to(x.dtype), v, g, beta.to(x.dtype), F.linear(x, rounded(self.in_proj_z))

    def outputs(self, o: Tensor, z: Tensor) -> Tensor:
        """Gated norm per head, then the output projection: [B, T, hidden]."""
        y = o.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.shape.eps) * self.norm
        y = y * F.silu(z.float()).view_as(y)
        return F.linear(y.flatten(-2).to(z.dtype), rounded(self.out_proj))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v, g, beta, z = self.inputs(x)
        return self.outputs(delta_rule(q, k, v, g, beta), z)


def _unit(x: Tensor) -> Tensor:
    y = x.float()
    return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Half-split rotary embedding on the first dimensions. x [B, T, H, D]; cos, sin [T, rotated]."""
    cos, sin = (table[None, :, None, :].to(x.dtype) for table in rope)
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    left, right = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-right, left], -1) * sin, rest], -1)


class Attention(nn.Module):
    """Grouped-query attention with per-head norms and an output gate, as in Qwen3.5."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        std = shape.hidden**-0.5
        self.q_proj = _parameter(2 * shape.heads * shape.head_dim, shape.hidden, std=std)
        self.k_proj = _parameter(shape.kv_heads * shape.head_dim, shape.hidden, std=std)
        self.v_proj = _parameter(shape.kv_heads * shape.head_dim, shape.hidden, std=std)
        self.o_proj = _parameter(
            shape.hidden, shape.heads * shape.head_dim, std=std / (2 * shape.layers) ** 0.5
        )
        self.q_norm = nn.Parameter(torch.zeros(shape.head_dim))
        self.k_norm = nn.Parameter(torch.zeros(shape.head_dim))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        s = self.shape
        q, k, v = (F.linear(x, rounded(weight)) for weight in (self.q_proj, self.k_proj, self.v_proj))
        q, gate = torch.unflatten(q, -1, (s.heads, 2 * s.head_dim)).chunk(2, -1)
        k, v = (torch.unflatten(t, -1, (s.kv_heads, s.head_dim)) for t in (k, v))
        q = rotate(rms_norm(q, self.q_norm, s.eps), rope).transpose(1, 2)
        k = rotate(rms_norm(k, self.k_norm, s.eps), rope).transpose(1, 2)
        groups = s.heads // s.kv_heads
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v.transpose(1, 2)))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return F.linear((o * gate.sigmoid()).flatten(-2), rounded(self.o_proj))


class Experts(nn.Module):
    """Router, routed experts (dense and masked) and the gated shared expert."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        std, down = shape.hidden**-0.5, shape.intermediate**-0.5 / (2 * shape.layers) ** 0.5
        self.gate = _parameter(shape.experts, shape.hidden, std=std)
        self.gate_up_proj = _parameter(shape.experts, 2 * shape.intermediate, shape.hidden, std=std)
        self.down_proj = _parameter(shape.experts, shape.hidden, shape.intermediate, std=down)
        self.shared_gate_up = _parameter(2 * shape.shared, shape.hidden, std=std)
        self.shared_down = _parameter(shape.hidden, shape.shared, std=down)
        self.shared_expert_gate = _parameter(1, shape.hidden, std=std)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, hidden] -> (y [N, hidden], balance loss)."""
        s = self.shape
        # Rounded to BF16 as the checkpoint holds it, so that served routing is trained routing.
        probabilities = F.linear(x.float(), self.gate.to(torch.bfloat16).float()).softmax(-1)
        top, ids = probabilities.topk(s.top_k, -1)
        weights = torch.zeros_like(probabilities).scatter(-1, ids, top / top.sum(-1, keepdim=True))
        load = (weights > 0).float().mean(0) / s.top_k
        balance = s.experts * (load * probabilities.mean(0)).sum()
        # Gate and up are rounded apart, as they are stored: [experts, 2, out, in].
        both = rounded(torch.unflatten(self.gate_up_proj, 1, (2, -1)))
        gate, up = torch.unflatten(F.linear(x, both.flatten(0, 2)), -1, (s.experts, 2, -1)).unbind(-2)
        hidden = F.silu(gate) * up * weights[..., None].to(x.dtype)
        y = F.linear(hidden.flatten(-2), rounded(self.down_proj).transpose(0, 1).flatten(1))
        shared_both = rounded(torch.unflatten(self.shared_gate_up, 0, (2, -1))).flatten(0, 1)
        gate, up = F.linear(x, shared_both).chunk(2, -1)
        shared = F.linear(F.silu(gate) * up, rounded(self.shared_down))
        return y + shared * F.linear(x, self.shared_expert_gate.to(x.dtype)).sigmoid(), balance


class Layer(nn.Module):
    """A mixer and the experts, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape, kind: str) -> None:
        super().__init__()
        self.eps = shape.eps
        self.input_layernorm = nn.Parameter(torch.zeros(shape.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.zeros(shape.hidden))
        self.mixer: DeltaNet | Attention = Attention(shape) if kind == "full_attention" else DeltaNet(shape)
        self.mlp = Experts(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = x + self.mixer(rms_norm(x, self.input_layernorm, self.eps), rope)
        y, balance = self.mlp(rms_norm(x, self.post_attention_layernorm, self.eps).flatten(0, 1))
        return x + y.view_as(x), balance


class Network(nn.Module):
    """The whole model; the embedding is also the output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = _parameter(shape.vocab, shape.hidden, std=0.02)
        self.layers = nn.ModuleList(Layer(shape, kind) for kind in shape.layer_types)
        self.norm = nn.Parameter(torch.zeros(shape.hidden))

    def rope(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin tables [length, rotated], float32."""
        rotated = int(self.shape.head_dim * self.shape.rotary)
        frequencies = self.shape.rope_theta ** (-torch.arange(0, rotated, 2, device=device).float() / rotated)
        angles = torch.arange(length, device=device).float()[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> (final hidden states [B, T, hidden] bf16, balance loss)."""
        x = F.embedding(ids, self.embed).to(COMPUTE)
        rope = self.rope(ids.shape[1], ids.device)
        total = x.new_zeros((), dtype=torch.float32)
        for layer in self.layers:
            x, balance = layer(x, rope)
            total = total + balance
        return rms_norm(x, self.norm, self.shape.eps), total / len(self.layers)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, vocab], float32."""
        return F.linear(self.hidden(ids)[0], self.embed.to(COMPUTE)).float()

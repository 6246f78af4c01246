"""Figures of a running engine, as immutable values: panes, `--json`, `/metrics` and traces read these.

None means unknown or not applicable, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ftagent.events import Divergence as Divergence

Phase = Literal["idle", "prefill", "decode", "mixed"]


class PoolStats(NamedTuple):
    """One elastic pool, in units of `unit_bytes`."""

    name: str  # "kv", "recurrent", "experts"
    used: int  # units held by live requests or resident experts
    total: int
    unit_bytes: int
    tokens_per_unit: int = 0  # KV pages only


class ExpertStats(NamedTuple):
    """Expert look-ups since start, and over the last 64 steps (`recent_*`).

    Counts, bytes and times are since start. A missing expert is fetched whole, computed whole on the CPU, or
    split between the two; what is fetched without being waited for is backfilled (after the CPU computed it)
    or guessed (before the router asked).
    """

    hits: int
    misses: int
    recent_hits: int
    recent_misses: int
    evictions: int
    layer_hit_rate: tuple[float | None, ...]  # per MoE layer over the last 64 steps
    fetched: int | None = None  # missing experts that came whole over the link
    cpu_computed: int | None = None  # missing experts that the CPU computed whole
    split: int | None = None  # missing experts shared by link and CPU
    backfilled: int | None = None  # experts brought into slots behind the CPU's work
    guessed: int | None = None  # look-ahead fetches that were begun before the router asked
    guess_used: int | None = None  # of those, how many were asked for
    bytes_link: int | None = None  # weights that crossed the link
    bytes_cpu: int | None = None  # weights that the CPU read where they lie
    link_ns: int | None = None  # time the link worked for steps
    cpu_ns: int | None = None  # time the CPU computed experts
    q: float | None = None  # share of the missing records that the link brought, 0..1, over recent steps
    q_optimum: float | None = None  # the share that the cost model calls best, over the same steps
    mode: str | None = None  # fused, offload, cpu or hybrid: how the last step was run
    mode_reason: str | None = None  # why: the last decision of mode auto, in words

    @property
    def hit_rate(self) -> float | None:
        """Share of recent look-ups found in a slot, 0..1; None before the first look-up."""
        seen = self.recent_hits + self.recent_misses
        return self.recent_hits / seen if seen else None


class AnchorMismatch(NamedTuple):
    """A hit that was wrong: resumed at `position`, the logits behind the prompt are not those of a cold run.

    `anchor` is what stands at the position ("thinking_start[3]"). `difference` and `tolerance` are in units
    of the spread of the logits; the tokens are the likeliest next ones.
    """

    turn: int  # of the conversation, from 1
    position: int
    anchor: str
    difference: float
    tolerance: float
    token_warm: int
    token_cold: int


class AnchorChecks(NamedTuple):
    """What `verify_anchors` has found since start: hits in all, hits that were checked, and wrong ones."""

    hits: int
    checked: int
    wrong: int
    newest: AnchorMismatch | None


@dataclass(frozen=True, slots=True)
class RequestStats:
    """A finished request, for the request pane and the log."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_s: float
    first_token_s: float | None  # from arrival to first token
    total_s: float
    finish: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine after one step. `time` is time.monotonic() of the step; rates are over the last 5 s."""

    time: float
    step: int
    phase: Phase
    running: int
    waiting: int
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    prompt_tokens: int  # since start
    cached_tokens: int  # since start
    completion_tokens: int  # since start
    pools: tuple[PoolStats, ...]
    experts: ExpertStats | None
    recent_requests: tuple[RequestStats, ...] = ()
    context_used: int = 0  # tokens of the longest running request
    anchors_skipped: int = 0  # times a state could not be kept because its pool was full
    anchor_checks: AnchorChecks | None = None  # None: not asked for
    divergence: Divergence | None = None  # the newest volatile span that a prompt was found to have
    divergences: tuple[tuple[str, int], ...] = ()  # how many there were since start, by kind of block

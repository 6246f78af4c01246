"""Look-up counts since start and over the last 64 steps."""

from __future__ import annotations

import random

from ftagent.engine.experts.counters import RECENT_STEPS, ExpertCounters


def test_recent_counts_are_those_of_the_last_steps() -> None:
    generator = random.Random(0)
    counters, at_once = ExpertCounters(3), ExpertCounters(3)
    history: list[list[tuple[int, int]]] = []
    evictions = 0
    for _ in range(200):
        counters.begin_step()
        step = [(generator.randint(0, 4), generator.randint(0, 4)) for _ in range(2)] + [(0, 0)]
        for layer, (hits, misses) in enumerate(step):
            counters.record(layer, hits, misses, misses // 2)
            evictions += misses // 2
        at_once.record_step(
            [hits for hits, _ in step], [misses for _, misses in step], sum(misses // 2 for _, misses in step)
        )
        history.append(step)
        stats = counters.stats()
        assert at_once.stats() == stats
        recent = history[-RECENT_STEPS:]
        assert stats.hits == sum(h for s in history for h, _ in s)
        assert stats.misses == sum(m for s in history for _, m in s)
        assert stats.recent_hits == sum(h for s in recent for h, _ in s)
        assert stats.recent_misses == sum(m for s in recent for _, m in s)
        assert stats.evictions == evictions
        assert stats.layer_hit_rate[2] is None
        seen = sum(h + m for s in recent for h, m in s[:1])
        assert stats.layer_hit_rate[0] == (sum(s[0][0] for s in recent) / seen if seen else None)


def test_nothing_seen_is_unknown_not_zero() -> None:
    stats = ExpertCounters(1).stats()
    assert stats.hit_rate is None
    assert stats.layer_hit_rate == (None,)

"""Health, metrics and statistics of the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from ftagent.engine.stats import AnchorChecks, AnchorMismatch, ExpertStats, PoolStats, RequestStats
from ftagent.gateway.metrics import plain, prometheus_text
from tests.gateway.stage import Stage
from tests.support.scripted import ScriptedEngine


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and its one label's value, read by the official client's parser."""
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_follow_the_snapshot(stage: Stage) -> None:
    reply = stage.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = samples(reply.text)
    assert seen["ftagent_pool_used_units", "kv"] == 12
    assert seen["ftagent_pool_total_units", "experts"] == 128
    assert seen["ftagent_expert_hits_total", ""] == 900
    assert seen["ftagent_expert_hit_ratio", ""] == 0.9
    assert seen["ftagent_requests_running", ""] == 0


def test_unknown_figures_are_left_out(stage: Stage) -> None:
    seen = samples(prometheus_text(stage.engine.stats()))
    assert ("ftagent_decode_tokens_per_second", "") not in seen
    assert seen["ftagent_expert_layer_hit_ratio", "0"] == 0.9
    assert ("ftagent_expert_layer_hit_ratio", "1") not in seen


def test_checks_are_counted_where_they_are_asked_for(stage: Stage) -> None:
    quiet = stage.engine.stats()
    assert ("ftagent_anchor_checks_total", "") not in samples(prometheus_text(quiet))
    wrong = AnchorMismatch(2, 40, "user[1]", 0.5, 0.005, 7, 8)
    seen = samples(prometheus_text(replace(quiet, anchor_checks=AnchorChecks(9, 4, 1, wrong))))
    assert seen["ftagent_anchor_checks_total", ""] == 4
    assert seen["ftagent_anchor_mismatches_total", ""] == 1
    assert plain(wrong)["anchor"] == "user[1]"


def test_a_pools_name_is_escaped() -> None:
    odd = 'a"b\\c\nd'
    snapshot = replace(
        ScriptedEngine(lambda request: []).stats(), pools=(PoolStats(odd, 1, 2, 3),), experts=None
    )
    assert samples(prometheus_text(snapshot))["ftagent_pool_used_units", odd] == 1


def test_plain_names_every_field() -> None:
    optional = {
        **dict.fromkeys(
            (
                "fetched",
                "cpu_computed",
                "split",
                "backfilled",
                "guessed",
                "guess_used",
                "bytes_link",
                "bytes_cpu",
            )
        ),
        **dict.fromkeys(("link_ns", "cpu_ns", "q", "q_optimum", "mode", "mode_reason")),
    }
    assert plain(ExpertStats(1, 2, 3, 4, 5, (0.5, None), bytes_link=7, q=0.25)) == optional | {
        "bytes_link": 7,
        "q": 0.25,
        "hits": 1,
        "misses": 2,
        "recent_hits": 3,
        "recent_misses": 4,
        "evictions": 5,
        "layer_hit_rate": [0.5, None],
    }
    assert plain((RequestStats("a", 1, 0, 2, 0.0, None, 1.5, "stop"),))[0]["first_token_s"] is None


def test_stats_are_the_snapshot_as_json(stage: Stage) -> None:
    stats = stage.get("/v1/stats").json()
    assert stats == plain(stage.engine.stats()) | {"time": stats["time"]}


def test_stats_stream_at_four_a_second_until_the_reader_leaves(stage: Stage) -> None:
    with stage.client.stream("GET", "/v1/stats/stream") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        times = [json.loads(next(lines).removeprefix("data: "))["time"] for _ in range(4)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(gap >= 0.2 for gap in gaps)


def test_health_follows_the_engine(stage: Stage) -> None:
    for health, status in (("ok", 200), ("loading", 503), ("failed", 503), ("stopped", 503)):
        stage.engine.health_now = health  # type: ignore[assignment]
        reply = stage.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (status, health)

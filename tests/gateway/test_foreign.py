"""Engines that are not ours, by the metrics that they export."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ftagent.errors import EngineError
from ftagent.gateway.client import Reader
from ftagent.gateway.foreign import MetricsReader, model_of, samples

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} %d
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} %d
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 750
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:token_usage{model_name="m"} 0.5
sglang:gen_throughput{model_name="m"} 86.5
sglang:prompt_tokens_total{model_name="m"} 8.128e+06
sglang:generation_tokens_total{model_name="m"} 7.557e+06
"""
LLAMACPP = """\
llamacpp:prompt_tokens_total 1000
llamacpp:tokens_predicted_total 200
llamacpp:requests_processing 0
llamacpp:requests_deferred 0
"""


def test_rates_come_from_two_readings() -> None:
    now = 100.0
    reader = MetricsReader(lambda: now)
    first = reader.snapshot(VLLM % (1000, 500))
    assert (first.running, first.waiting, first.prompt_tokens, first.cached_tokens) == (2, 1, 1000, 750)
    assert first.decode_tokens_per_s is None
    assert first.pools[0].used / first.pools[0].total == 0.25
    assert first.experts is None
    now = 102.0
    second = reader.snapshot(VLLM % (1000, 700))
    assert (second.decode_tokens_per_s, second.phase) == (100.0, "decode")
    now = 103.0
    assert reader.snapshot(VLLM % (0, 0)).decode_tokens_per_s == 0  # it was started anew


def test_a_rate_that_is_told_counts() -> None:
    snapshot = MetricsReader().snapshot(SGLANG)
    assert snapshot.decode_tokens_per_s == 86.5
    assert snapshot.completion_tokens == 7_557_000


def test_what_is_not_exported_is_unknown() -> None:
    snapshot = MetricsReader().snapshot(LLAMACPP)
    assert (snapshot.phase, snapshot.pools, snapshot.experts) == ("idle", (), None)


def test_metrics_of_something_else_are_refused() -> None:
    with pytest.raises(EngineError, match="vllm, sglang, llamacpp"):
        MetricsReader().snapshot("python_gc_objects_collected_total 12\n")


@pytest.mark.parametrize("text", [VLLM % (1, 2), SGLANG, LLAMACPP, "", "odd{ 1\nname nonsense\n"])
def test_values_are_those_of_the_official_parser(text: str) -> None:
    if "odd" in text:
        assert samples(text) == {}
        return
    theirs = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples(text) == theirs


@pytest.mark.parametrize("listed", [{}, {"data": []}, [], {"data": [{"name": "x"}]}, None])
def test_a_list_that_is_none(listed: object) -> None:
    with pytest.raises(EngineError, match="/v1/models"):
        model_of(listed, "http://there")


@pytest.fixture
def vllm() -> Iterator[str]:
    """Answers as vLLM's server does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/metrics": (VLLM % (10, 5)).encode(),
                "/v1/models": json.dumps({"data": [{"id": "m", "max_model_len": 32768}]}).encode(),
            }
            body = answers.get(self.path)
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *unused: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_engine_that_is_no_ftagent_is_read_by_its_metrics(vllm: str) -> None:
    reader = Reader()
    for _ in range(2):
        report = reader.fetch(vllm, None)
    assert (report.model.id, report.model.context, report.health) == ("m", 32768, "ok")
    assert report.snapshot is not None
    assert (report.snapshot.running, report.snapshot.step) == (2, 2)

"""Clients that leave and engines that die, with the real gateway in front of the real engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ftagent.engine.chunk import Chunk
from ftagent.engine.job import Piece
from tests.gateway.clients import PROTOCOLS, Asker, Protocol, asking
from tests.gateway.stage import eventually
from tests.support.saying_engine import SayingEngine

LONG = list(b"word " * 1600)  # 8000 tokens


def free(engine: SayingEngine) -> bool:
    """Nothing runs, and only anchors hold pages."""
    if engine.scheduler.running or engine.scheduler.waiting:
        return False
    engine.scheduler.check_integrity()
    return engine.scheduler.used_pages() == 0 and engine.runner.recurrent.free_count == 8


class Slow:
    """A millisecond for each step, and a stop before step `hold`, counted from the next one."""

    def __init__(self, hold: int | None = None) -> None:
        self.hold = hold
        self.seen = 0
        self.go_on = threading.Event()

    def __call__(self, chunks: Sequence[Chunk]) -> None:
        self.seen += 1
        if self.seen == self.hold:
            assert self.go_on.wait(20)
        threading.Event().wait(0.001)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_that_is_closed_after_its_first_words(protocol: Protocol) -> None:
    with asking("qwen3_like", context=8192) as asker:
        asker.engine.runner.before_step = slow = Slow()
        asker.engine.say(LONG)
        with asker.stream(protocol) as reply:
            pieces = reply.iter_text()
            seen = ""
            while '"w"' not in seen:
                seen += next(pieces)
        assert eventually(lambda: free(asker.engine), timeout_s=2)
        assert slow.seen < 2000
        assert len(asker.engine.runner.script) > 6000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold", [3, 20])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_that_gives_up_waiting(protocol: Protocol, stream: bool, hold: int) -> None:
    """In the third of seven chunks of its prompt, or in the middle of its reply."""
    question = [{"role": "user", "content": "x" * 6500}]
    with asking("qwen3_like", context=8192) as asker:
        asker.engine.runner.before_step = slow = Slow(hold)
        asker.engine.say(LONG)
        with pytest.raises(httpx.ReadTimeout):
            asker.post(protocol, question, (), stream=stream, timeout_s=0.3)
        assert eventually(lambda: slow.seen == hold)
        assert eventually(lambda: bool(asker.engine.scheduler.cancelled()))
        slow.go_on.set()
        assert eventually(lambda: free(asker.engine), timeout_s=2)
        assert slow.seen <= hold + 2


def test_a_dying_engine_tells_all_and_a_new_one_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One streamed, one not, one still queued; then the books of the scheduler break for good."""
    with asking("qwen3_like") as asker:
        monkeypatch.setattr(asker.engine.scheduler, "_max_running", 2)
        asker.engine.runner.before_step = slow = Slow(hold=4)
        asker.engine.say(LONG)
        ways: list[tuple[Protocol, bool]] = [("messages", True), ("chat", False), ("messages", False)]
        with ThreadPoolExecutor(3) as pool:
            replies = [pool.submit(asker.post, protocol, stream=stream) for protocol, stream in ways]
            assert eventually(lambda: slow.seen >= 4 or waits(asker) == 3)

            def broken(pieces: Sequence[Piece]) -> None:
                raise KeyError("books")

            monkeypatch.setattr(asker.engine.scheduler, "commit", broken)
            slow.go_on.set()
            texts = [reply.result(timeout=2).text for reply in replies]
        assert all("KeyError: 'books'" in text or "has failed" in text for text in texts)
        assert asker.health().status_code == 503
        refused = asker.post("chat")
        assert refused.status_code == 503
        assert "has failed" in refused.text
    assert "books" in caplog.text
    with asking("qwen3_like") as again:
        again.engine.say("Done.")
        assert again.ask("chat", False).content == "Done."
        assert again.health().json() == {"status": "ok"}


def waits(asker: Asker) -> int:
    return len(asker.engine.scheduler.running) + len(asker.engine.scheduler.waiting)


def test_a_fault_in_one_step_is_told_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with asking("qwen3_like") as asker:
        faults = iter([RuntimeError("the device has left")])

        def before(chunks: Sequence[Chunk]) -> None:
            for fault in faults:
                raise fault

        asker.engine.runner.before_step = before
        for protocol in PROTOCOLS:
            faults = iter([RuntimeError("the device has left")])
            asker.engine.say("Done.")
            failed = asker.post(protocol)
            assert failed.status_code >= 500
            assert "the device has left" in failed.text
            assert asker.ask(protocol, True).content == "Done."
    assert "the device has left" in caplog.text

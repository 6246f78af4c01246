"""The page pool against a brute-force count of references."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.context.pages import (
    PAGE_TOKENS,
    KvShape,
    KvStorage,
    PagePool,
    PoolFull,
    split_runs,
    token_runs,
)


@settings(deadline=None, max_examples=60)
@given(
    total=st.integers(0, 12),
    actions=st.lists(st.tuples(st.sampled_from(["take", "share", "drop"]), st.integers(0, 9)), max_size=40),
)
def test_references_are_kept_whatever_happens(total: int, actions: list[tuple[str, int]]) -> None:
    pool = PagePool(total)
    held: list[list[int]] = []
    for action, number in actions:
        in_use = {page for pages in held for page in pages}
        if action == "take":
            if number > total - len(in_use):
                with pytest.raises(PoolFull):
                    pool.allocate(number)
            else:
                pages = pool.allocate(number, after=held[-1][-1] if held and held[-1] else None)
                assert len(set(pages)) == number
                assert not set(pages) & in_use
                held.append(pages)
        elif held and action == "share":
            pool.retain(held[number % len(held)])
            held.append(list(held[number % len(held)]))
        elif held:
            pool.release(held.pop(number % len(held)))
        flat = [page for pages in held for page in pages]
        assert pool.free_count == total - len(set(flat))
        assert all(pool.references(page) == flat.count(page) for page in range(total))
        pool.check_integrity()


def test_a_growing_request_keeps_one_run_beside_another() -> None:
    pool = PagePool(100)
    first, second = pool.allocate(3), pool.allocate(2)
    for _ in range(10):
        first += pool.allocate(1, after=first[-1])
        second += pool.allocate(2, after=second[-1])
    assert len(token_runs(first, 0, len(first) * PAGE_TOKENS)) <= 2
    assert len(token_runs(second, 0, len(second) * PAGE_TOKENS)) <= 2


def test_releasing_a_free_page_is_a_bug_that_shows() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="is free already"):
        pool.release(pages)


def test_a_damaged_count_is_found() -> None:
    pool = PagePool(2)
    pool.allocate(1)
    pool._free_count = 2
    with pytest.raises(AssertionError):
        pool.check_integrity()


@settings(deadline=None, max_examples=40)
@given(
    pages=st.permutations(range(8)),
    bounds=st.tuples(st.integers(0, 8 * PAGE_TOKENS), st.integers(0, 8 * PAGE_TOKENS)),
)
def test_runs_cover_exactly_the_positions_asked_for(pages: list[int], bounds: tuple[int, int]) -> None:
    begin, end = sorted(bounds)
    runs = token_runs(pages, begin, end)
    covered = [place for first, tokens in runs for place in range(first, first + tokens)]
    assert covered == [pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(begin, end)]
    assert all(a[0] + a[1] != b[0] for a, b in pairwise(runs)), "neighbouring runs are one run"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=5), st.integers(1, 90))
def test_pieces_of_runs_are_the_runs(runs: list[tuple[int, int]], tokens: int) -> None:
    pieces = list(split_runs(runs, tokens))
    places = [place for first, length in runs for place in range(first, first + length)]
    assert [place for piece in pieces for first, n in piece for place in range(first, first + n)] == places
    sizes = [sum(length for _, length in piece) for piece in pieces]
    assert all(size == tokens for size in sizes[:-1])
    assert all(0 < size <= tokens for size in sizes[-1:])


def test_what_is_written_is_read_in_order() -> None:
    storage = KvStorage(KvShape(layers=2, planes=4, size=4), 3, torch.float32, torch.device("cpu"))
    written = torch.randn(4, 100, 4)
    pages = [2, 0]
    places = torch.tensor([pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(100)])
    storage.write(1, places, written)
    key, value = storage.read_pairs(1, token_runs(pages, 10, 90))
    assert torch.equal(key, written[:2, 10:90])
    assert torch.equal(value, written[2:, 10:90])

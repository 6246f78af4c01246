"""Time look-up and bookkeeping of kept prompts: 100,000 tokens, 1,000 anchors on the path, 50 branches.

    python -m benchmarks.prefix_look_up

Each line: median and most of 50 calls, in microseconds. No model and no tensors of states: what is timed is
what the thread that steps does for a request, beside the copy of the state itself.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from ftagent.engine.context.anchors import PrefixCache
from ftagent.engine.context.pages import PAGE_TOKENS, PagePool
from ftagent.engine.context.tree import token_key

TOKENS, ANCHORS, BRANCHES, VOCAB = 100_000, 1_000, 50, 150_000
CALLS = 50


class States:
    """States of one MiB that are nowhere."""

    total = free_count = 8

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes

    def allocate(self) -> int:
        return 0

    def release(self, slot: int) -> None:
        return

    def snapshot(self, slot: int) -> int:
        return slot

    def restore(self, slot: int, snapshot: object) -> None:
        return

    def check_integrity(self) -> None:
        return


def filled(slot_bytes: int, dice: random.Random) -> tuple[PrefixCache, PagePool, list[int], list[int]]:
    """A cache with all prompts, its pool, the longest prompt and its pages."""
    pool = PagePool(40_000, PAGE_TOKENS, 1 << 20)
    cache = PrefixCache(pool, States(slot_bytes), 4 * ANCHORS)
    prompt = dice.choices(range(VOCAB), k=TOKENS)
    pages = pool.allocate(-(-TOKENS // PAGE_TOKENS) + 20)
    gap = TOKENS // ANCHORS
    keep(cache, prompt, pages, range(gap, TOKENS + 1, gap))
    for _ in range(BRANCHES):
        branch = prompt[: dice.randrange(TOKENS)] + dice.choices(range(VOCAB), k=300)
        own = pool.allocate(-(-len(branch) // PAGE_TOKENS))
        keep(cache, branch, own, [len(branch)])
        pool.release(own)
    return cache, pool, prompt, pages


def keep(cache: PrefixCache, prompt: list[int], pages: list[int], places: range | list[int]) -> None:
    key = token_key(prompt)
    visit = cache.begin(cache.find(key, len(prompt)), len(prompt))
    for place in places:
        cache.keep(key, place, pages, 0, visit, mark=True)
    cache.end(visit, len(prompt), len(prompt))


def timed(name: str, call: Callable[[], object]) -> None:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begin))
    print(f"  {name:<40} {statistics.median(times):8.0f} {max(times):8.0f}")


def measure(words: str, slot_bytes: int) -> None:
    dice = random.Random(0)
    cache, pool, prompt, pages = filled(slot_bytes, dice)
    longer = prompt + dice.choices(range(VOCAB), k=1000)
    key, changed = token_key(longer), bytearray(token_key(longer))
    changed[4 * 77_777] ^= 1
    ends = iter(range(TOKENS + 1, TOKENS + 1 + CALLS))

    def turn() -> None:
        match = cache.find(key, len(longer))
        visit = cache.begin(match, len(longer), range(10_000, TOKENS, 10_000))
        pool.retain(match.pages)
        end = next(ends)
        cache.keep(key, end, pages, 0, visit, mark=True)
        cache.end(visit, end, end)
        pool.release(match.pages)

    print(f"{words}: {len(cache)} anchors")
    timed("look-up, all 100,000 tokens", lambda: cache.find(key, len(longer)))
    timed("look-up, differs at 77,777", lambda: cache.find(changed, len(longer)))
    timed("a whole turn: look-up, pages, new anchor", turn)
    timed("page freed by dropping a branch", lambda: cache.make_room(pool.free_count + 1))
    cache.check_integrity()


if __name__ == "__main__":
    measure("with recurrent state", 1 << 20)
    measure("without", 0)

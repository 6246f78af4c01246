"""What the model will do, before any weight exists: which ids follow each other, and how each is routed.

Routing vectors follow the trace that was fitted to published routing statistics: a topic that lasts some
hundred tokens, a token type (Zipf), and an exponential average over the last tokens. Pure numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dials:
    """Standard deviations of the parts of a router's logits, and the shape of the text.

    Popularity is the same for all tokens; topic, token and context come from the token; noise is not known
    before the layer that uses it, so it is what a look-ahead misses. Fitted to previous-token overlap and to
    LRU hit rates of Qwen-like routers; `noise` to how much of its choice a router makes one layer early.
    """

    popularity: float = 0.697
    topic: float = 1.101
    token: float = 0.893
    context: float = 1.628
    noise: float = 0.569
    decay: float = 0.86  # of the context, per token
    topic_tokens: int = 335  # mean length
    topics: int = 12
    types: int = 3000
    zipf: float = 1.05

    @property
    def known(self) -> float:
        """Standard deviation of the part of the logits that the token's own vector carries."""
        return float(np.sqrt(self.topic**2 + self.token**2 + self.context**2))


NOISE = {"qwen3_moe": 0.30, "qwen3_5_moe": 0.569}  # recall 0.89 and 0.81 (0.80 in the fit)


def rng(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for everything that is drawn under `name`."""
    return np.random.default_rng(
        int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    )


def routing_vectors(count: int, width: int, dials: Dials, seed: int) -> Floats:
    """float32 [count, width], unit variance: the routing vector of each token of a text, in its order."""
    random = rng(seed, "text")
    topic = _topics(count, dials, random)
    weights = np.arange(1, dials.types + 1) ** -dials.zipf
    weights /= weights.sum()
    by_topic = np.array([random.permutation(dials.types) for _ in range(dials.topics)])
    common = random.permutation(dials.types)
    first, second = (random.choice(dials.types, count, p=weights) for _ in range(2))
    token = np.where(random.random(count) < 0.5, common[first], by_topic[topic, second])
    types = random.standard_normal((dials.types, width))
    topics = random.standard_normal((dials.topics, width))
    context = np.empty((count, width))
    state = random.standard_normal(width)
    fresh = np.sqrt(1 - dials.decay**2)
    for place in range(count):
        state = dials.decay * state + fresh * types[token[place]]
        context[place] = state
    mixed = dials.topic * topics[topic] + dials.token * types[token] + dials.context * context
    return (mixed / dials.known).astype(np.float32)


def _topics(count: int, dials: Dials, random: np.random.Generator) -> Ids:
    topic = np.zeros(count, np.int64)
    start = 0
    while start < count:
        length = max(5, int(random.geometric(1 / dials.topic_tokens)))
        topic[start : start + length] = random.integers(dials.topics)
        start += length
    return topic


@dataclass(frozen=True, slots=True)
class Script:
    """`walk`: the ids in their order, a circle. `successor` [vocab]: the id after each id; one that is not
    part of the walk leads into it. `vectors` float32 [vocab, width]: each id's routing vector."""

    walk: Ids
    successor: Ids
    vectors: Floats


def write_script(words: Sequence[int], vocab: int, width: int, dials: Dials, seed: int) -> Script:
    """The walk over `words` (ids of plain single-token words, each used once)."""
    random = rng(seed, "walk")
    walk = random.permutation(np.asarray(words, np.int64))
    successor = walk[random.integers(len(walk), size=vocab)]
    successor[walk] = np.roll(walk, -1)
    vectors = random.standard_normal((vocab, width)).astype(np.float32)
    vectors[walk] = routing_vectors(len(walk), width, dials, seed)
    return Script(walk, successor, vectors)

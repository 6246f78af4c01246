"""From one row of logits to one token.

The order is the common one (transformers, vLLM): logprobs are read off the untouched logits; then grammar
mask; repetition, frequency and presence penalties; temperature; top-k; top-p over what is left; min-p; one
draw. Each drawn token takes exactly one number from the request's own generator, so a seeded request
gives the same tokens whatever else runs. Knows numpy rows, no tensors, no text and no other request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ftagent.engine.api import SamplingParams
from ftagent.engine.logits import Best, Ids, Row
from ftagent.errors import BadRequest, EngineError, LoadFailed

GREEDY_BELOW = 1e-5  # a temperature under this is greedy: dividing by it would overflow float32
MAX_TOP_LOGPROBS = 20


class Constraint(Protocol):
    """What is needed of a grammar (`prompt.grammar.Constraint`): mask a row in place, follow a token."""

    @property
    def finished(self) -> bool: ...

    def apply(self, logits: Any, /) -> None: ...

    def advance(self, token_id: int, /) -> None: ...


class Choice(NamedTuple):
    """A chosen token. `logprob` is None unless asked for; `top` holds (token id, logprob), best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model's own generation_config.json says, for fields that a request leaves None."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def from_directory(cls, directory: Path) -> SamplingDefaults:
        """Read generation_config.json (Hugging Face); a missing file or field means no filter at all.

        `do_sample: false` means greedy. Raises LoadFailed when the file is not JSON or a value is no number.
        """
        path = directory / "generation_config.json"
        if not path.is_file():
            return cls()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                temperature=0.0 if found.get("do_sample") is False else _number(found, "temperature", 1.0),
                top_p=_number(found, "top_p", 1.0),
                top_k=int(_number(found, "top_k", 0)),
                min_p=_number(found, "min_p", 0.0),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise LoadFailed(f"{path}: {error}; repair or delete this file") from error


def _number(found: dict[str, Any], name: str, default: float) -> float:
    value = found.get(name)
    return default if value is None else float(value)


def check_params(params: SamplingParams) -> None:
    """Raise BadRequest, which names the field, for a value that has no meaning."""
    ranges: tuple[tuple[str, float, float], ...] = (
        ("max_tokens", 1, math.inf),
        ("temperature", 0, 1e6),
        ("top_p", 0, 1),
        ("top_k", -1, math.inf),
        ("min_p", 0, 1),
        ("repetition_penalty", 1e-6, 1e6),
        ("presence_penalty", -100, 100),
        ("frequency_penalty", -100, 100),
        ("top_logprobs", 0, MAX_TOP_LOGPROBS),
    )
    for name, low, high in ranges:
        value = getattr(params, name)
        if value is not None and not low <= value <= high:  # also refuses NaN
            upper = "" if high == math.inf else f" and at most {high:g}"
            raise BadRequest(f"{name} must be at least {low:g}{upper}, not {value}", field=name)
    if any(not stop for stop in params.stop):
        raise BadRequest("stop must not hold an empty string", field="stop")


class Sampler:
    """Chooses the tokens of one request.

    `prompt` counts for the repetition penalty only; presence and frequency look at the reply alone.
    """

    def __init__(
        self, params: SamplingParams, defaults: SamplingDefaults, prompt: Sequence[int], seed: int
    ) -> None:
        self._temperature = defaults.temperature if params.temperature is None else params.temperature
        self._top_p = defaults.top_p if params.top_p is None else params.top_p
        self._top_k = defaults.top_k if params.top_k is None else params.top_k
        self._min_p = defaults.min_p if params.min_p is None else params.min_p
        self._top_logprobs = params.top_logprobs
        self._penalties = _Penalties.of(params, prompt)
        chosen = seed if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(chosen & (2**64 - 1)))

    def choose(self, row: Row, constraint: Constraint | None = None) -> Choice:
        """One token for `row`, float32 [vocab], which is overwritten.

        Raises EngineError when the row holds NaN or when the constraint leaves no token.
        """
        if not math.isfinite(row.max()):  # NaN anywhere makes the maximum NaN
            raise EngineError("the model computed NaN or infinity; the weights or the device are faulty")
        raw = row.copy() if self._top_logprobs is not None else None
        if constraint is not None:
            constraint.apply(row)
            if row.max() == -np.inf:
                raise EngineError("the grammar of this request allows no token here")
        if self._penalties is not None:
            self._penalties.apply(row)
        token = int(row.argmax()) if self._temperature < GREEDY_BELOW else self._draw(row)
        if self._penalties is not None:
            self._penalties.count(token)
        return Choice(token) if raw is None else self._with_logprobs(token, raw)

    def choose_best(self, best: Best) -> Choice | None:
        """The token that `choose` would give, from the largest logits alone; None where they may not do.

        They do for a greedy choice, and for top-k when everything that ties with its last place is there.
        Raises EngineError when a value is NaN or infinite.
        """
        if self._top_logprobs is not None or self._penalties is not None:
            return None
        if not np.isfinite(best.values).all():
            raise EngineError("the model computed NaN or infinity; the weights or the device are faulty")
        if self._temperature < GREEDY_BELOW:
            return Choice(int(best.ids[best.values.argmax()]))
        count = len(best.values)
        if not 0 < self._top_k < count:
            return None
        if np.partition(best.values, count - self._top_k)[count - self._top_k] == best.values.min():
            return None  # its last place may tie with logits that are not here
        return Choice(int(best.ids[self._draw(best.values)]))

    def _draw(self, row: Row) -> int:
        ids, weights = nucleus(row / np.float32(self._temperature), self._top_k, self._top_p, self._min_p)
        sums = weights.cumsum()
        place = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        if place == len(sums):  # the product was rounded up to the very end
            place = int(weights.argmax())
        return int(place if ids is None else ids[place])

    def _with_logprobs(self, token: int, raw: Row) -> Choice:
        """Logprobs are natural logarithms of the softmax of the model's own logits, at temperature 1."""
        raw = raw - raw.max()
        raw -= np.log(np.exp(raw, dtype=np.float64).sum())
        count = min(self._top_logprobs or 0, len(raw))
        if not count:
            return Choice(token, float(raw[token]))
        best = np.argpartition(raw, len(raw) - count)[len(raw) - count :]
        best = best[np.lexsort((best, -raw[best]))]
        return Choice(token, float(raw[token]), tuple((int(id_), float(raw[id_])) for id_ in best))


def nucleus(row: Row, top_k: int, top_p: float, min_p: float) -> tuple[Ids | None, NDArray[np.float64]]:
    """Filter logits, float32 [vocab], to candidates: their ids and weights (not normalised).

    ids None stands for the whole row in order. top-k keeps ties of its last place. top-p keeps the fewest
    likeliest tokens that reach it (Holtzman et al. 2020). min-p drops tokens less likely than `min_p` times
    the likeliest (Nguyen et al. 2024). The likeliest always stays. At equal weight the lower id is first.
    """
    ids: Ids | None = None
    if 0 < top_k < len(row):
        threshold = np.partition(row, len(row) - top_k)[len(row) - top_k]
        ids = np.flatnonzero(row >= threshold)
        row = row[ids]
    weights = np.exp((row - row.max()).astype(np.float64))
    if top_p < 1:
        kept = _top_p(weights, top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if min_p > 0:
        kept = np.flatnonzero(weights >= min_p * weights.max())
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    return ids, weights


def _top_p(weights: NDArray[np.float64], top_p: float) -> Ids:
    """Places of the likeliest weights whose sum first reaches `top_p` of the whole, likeliest first."""
    total = weights.sum()
    # Tokens each below (1 - top_p) / n of the whole sum to less than 1 - top_p: none of them can be needed,
    # and not sorting them is what makes a vocabulary of 250k affordable.
    likely = np.flatnonzero(weights >= (1 - top_p) / len(weights) * total * (1 - 1e-9))
    order = likely[np.argsort(-weights[likely], kind="stable")]
    sums = weights[order].cumsum()
    before = sums - weights[order]
    return order[: max(1, int(np.searchsorted(before, top_p * total, side="left")))]


class _Penalties:
    """Counts of the tokens seen, and what they take from their logits.

    Repetition (Keskar et al. 2019) divides a positive logit and multiplies a negative one, for tokens of
    prompt and reply. Presence and frequency are subtracted, once and per occurrence, for the reply only.
    """

    def __init__(self, repetition: float, presence: float, frequency: float, prompt: Sequence[int]) -> None:
        self._repetition = np.float32(repetition)
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._seen = _Counts()
        self._reply = _Counts()
        if repetition != 1:
            for token in dict.fromkeys(prompt):
                self._seen.add(token)

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int]) -> _Penalties | None:
        """None when there is nothing to do."""
        if params.repetition_penalty == 1 and not params.presence_penalty and not params.frequency_penalty:
            return None
        return cls(params.repetition_penalty, params.presence_penalty, params.frequency_penalty, prompt)

    def apply(self, row: Row) -> None:
        if self._repetition != 1:
            ids = self._seen.ids
            found = row[ids]
            row[ids] = np.where(found > 0, found / self._repetition, found * self._repetition)
        if self._presence or self._frequency:
            row[self._reply.ids] -= self._presence + self._frequency * self._reply.counts

    def count(self, token: int) -> None:
        self._seen.add(token)
        self._reply.add(token)


class _Counts:
    """How often each token occurred, as two parallel arrays that grow by doubling."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, np.intp)
        self._counts = np.zeros(64, np.float32)

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[place] = token
        self._counts[place] += 1

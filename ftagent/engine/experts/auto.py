"""Mode `auto`: which mode the next decode step runs in, decided by the times of the steps themselves.

The steps of the loaded model are the benchmark: other modes get short bursts of real steps, few and far
between, and a mode that is measured slower is left within a few steps. Pure integers, no clock and no torch:
it is told what each step took. The runner owns the modes; `comparison` owns the arithmetic.

What probing may cost is bounded: a mode measured slower is looked at again only when that costs at most
BUDGET permille of the time in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ftagent.engine.experts.comparison import ENOUGH, HYSTERESIS, Comparison, Sample, compare, fixed_ns
from ftagent.engine.options import Mode

PROBE_STEPS = 12
MOST_STEPS = 96  # of a challenger that looks faster, until it is certain
PROBE_EVERY = 400
BUDGET = 5  # permille of the steps' time that looking at a slower mode may cost
LONGEST = 4000  # steps after which any mode is looked at again
WINDOW = 32  # steps of the mode in force that others are compared with
HISTORY = 256  # steps of it that tell how its time depends on misses
SUDDEN = 1500  # permille of its usual time from which a step counts as suddenly slow
SUDDEN_STEPS = 4
USUAL_EVERY = 8  # steps between two looks at what is usual
PATIENCE = 64  # steps: between sudden looks, and without misses before a burst is given up
_RACE = (1, 2, 4, 8)  # steps of either side, in turn, while a mode has never been measured


class Forecast(NamedTuple):
    """What one missing expert costs by the cost model, in nanoseconds: over the link, and on the CPU."""

    link_ns: int
    cpu_ns: int

    @property
    def cpu_is_hopeless(self) -> bool:
        """Mode cpu leaves the link idle, so at best it saves the link's share: little, unless the CPU is far
        faster.
        """
        return 4 * self.cpu_ns > self.link_ns


class Change(NamedTuple):
    """The mode in force changed before step `step`; `reason` is a sentence with the figures."""

    step: int
    before: Mode
    mode: Mode
    reason: str


@dataclass(slots=True)
class _Burst:
    """Steps of a challenger and of the mode in force, in turn. `blocks`: whose, and how many are left."""

    challenger: Mode
    blocks: list[tuple[bool, int]]
    race: bool
    ours: list[Sample]
    theirs: list[Sample] = field(default_factory=list)
    idle: int = 0


class AutoMode:
    """Ask `next_mode`, run the step in it, tell `record`. Not thread-safe.

    `rivals` are the modes besides the one it starts in. With `resident` (every expert in a slot) the mode is
    fused for good. Without a forecast mode cpu is not looked at. Steps that are slow for another reason
    (compiling, the first of a graph) should not be recorded.
    """

    def __init__(
        self,
        *,
        resident: bool = False,
        start: Mode = "hybrid",
        rivals: Sequence[Mode] = ("offload", "cpu"),
        forecast: Forecast | None = None,
    ) -> None:
        self.mode: Mode = "fused" if resident else start
        self.reason = "every expert has a slot" if resident else f"starts in {start}, nothing is measured yet"
        self.changes: deque[Change] = deque(maxlen=64)
        self._forecast = forecast
        self._next_look: dict[Mode, int] = {} if resident else dict.fromkeys(rivals, 0)
        self._known: dict[Mode, int] = {}  # permille of the mode in force, as last measured
        self._window: deque[Sample] = deque(maxlen=WINDOW)
        self._history: deque[Sample] = deque(maxlen=HISTORY)
        self._burst: _Burst | None = None
        self._steps = 0
        self._rows = 0
        self._rows_seen: set[int] = set()
        self._calm_until = 0
        self._look_at = 0  # no look is due before this step
        self._usual = 0
        self._usual_until = 0

    @property
    def next_mode(self) -> Mode:
        """The mode for the next step: the one in force, or a challenger for a short while."""
        if self._burst is not None and self._burst.blocks[0][0]:
            return self._burst.challenger
        return self.mode

    @property
    def probing(self) -> bool:
        """Whether the next step belongs to a burst."""
        return self._burst is not None

    def set_forecast(self, forecast: Forecast) -> None:
        """Follow the cost model, which is corrected while the engine runs."""
        self._forecast = forecast
        self._look_at = min(self._look_at, self._steps + PATIENCE)

    def exclude(self, mode: Mode, reason: str) -> Change | None:
        """`mode` cannot be run any more (`reason` ends the sentence). Leaves it when it is in force.

        Raises ValueError when no mode is left.
        """
        self._next_look.pop(mode, None)
        if self._burst is not None and mode in (self.mode, self._burst.challenger):
            self._burst = None
        if mode != self.mode:
            return None
        if not self._next_look:
            raise ValueError(f"no mode is left: {mode} cannot be run, {reason}")
        rest = min(self._next_look, key=lambda rival: self._known.get(rival, 1000))
        del self._next_look[rest]
        return self._enter(rest, [], f"{mode} cannot be run: {reason}")

    def record(self, mode: Mode, step_ns: int, misses: int, rows: int) -> Change | None:
        """A decode step of `rows` rows that missed `misses` experts in all layers ran in `mode`.

        Returns the change of mode that follows from it, if one does.
        """
        self._steps += 1
        if rows != self._rows:
            self._begin_rows(rows)
        burst = self._burst
        if misses < 1 or mode != self.next_mode:
            if burst is not None:
                burst.idle += 1
                if burst.idle > PATIENCE:
                    self._give_up(burst)
            return None
        sample = Sample(max(step_ns, 1), misses)
        if burst is not None:
            return self._in_burst(burst, sample)
        self._window.append(sample)
        self._history.append(sample)
        # Nearly every step ends here: this lies between two steps, where a few microseconds count.
        if self._steps >= self._look_at or 1000 * sample.ns >= SUDDEN * self._usual_ns():
            self._begin_burst()
        return None

    def _usual_ns(self) -> int:
        """The median step of the window, looked at now and then."""
        if self._steps >= self._usual_until:
            ordered = sorted(sample.ns for sample in self._window)
            self._usual = ordered[len(ordered) // 2] if ordered else 0
            self._usual_until = self._steps + USUAL_EVERY
        return self._usual

    def check_integrity(self) -> None:
        """Raise AssertionError when the mode in force is its own rival, or a burst has no end."""
        assert self.mode not in self._next_look, "the mode in force is its own rival"
        assert len(self._window) <= WINDOW
        if self._burst is not None:
            assert self._burst.challenger in self._next_look
            assert self._burst.blocks
            assert all(left > 0 for _, left in self._burst.blocks)

    def _begin_rows(self, rows: int) -> None:
        """Steps of different batch sizes are not compared. A new size is looked at soon."""
        self._rows = rows
        self._window.clear()
        self._history.clear()
        self._look_at = self._usual_until = 0
        if self._burst is not None:
            self._give_up(self._burst)
        if rows not in self._rows_seen and self._rows_seen:
            for rival, ratio in self._known.items():
                if rival in self._next_look and ratio < SUDDEN:
                    self._next_look[rival] = min(self._next_look[rival], self._steps + PATIENCE)
        self._rows_seen.add(rows)

    def _begin_burst(self) -> None:
        """Start one when it is time: a mode never measured, a sudden slowness, or a look that is due."""
        rivals = [rival for rival in self._next_look if self._worth(rival)]
        for rival in rivals:
            if rival not in self._known and self._steps >= self._next_look[rival]:
                self._race(rival, list(self._window)[-SUDDEN_STEPS:])
                return
        slowness = self._slowness()
        if slowness >= SUDDEN:
            for rival in rivals:
                if self._known.get(rival, 1000) < slowness:
                    self._calm_until = self._steps + PATIENCE
                    self._race(rival, list(self._window)[-SUDDEN_STEPS:])
                    return
        due = [rival for rival in rivals if self._steps >= self._next_look[rival]]
        if due and len(self._window) >= PROBE_STEPS:
            rival = min(due, key=lambda each: self._next_look[each])
            self._burst = _Burst(rival, [(True, PROBE_STEPS)], race=False, ours=list(self._window))
        elif not due:  # a mode without a chance is thought about again later
            self._look_at = min((self._next_look[each] for each in rivals), default=self._steps + PATIENCE)

    def _worth(self, rival: Mode) -> bool:
        return rival != "cpu" or (self._forecast is not None and not self._forecast.cpu_is_hopeless)

    def _race(self, rival: Mode, ours: list[Sample]) -> None:
        blocks = [(True, _RACE[0])]
        for length in _RACE[1:]:
            blocks += [(False, length), (True, length)]
        blocks.append((False, _RACE[-1]))
        self._burst = _Burst(rival, blocks, race=True, ours=ours)

    def _slowness(self) -> int:
        """Permille of the usual time that all of the last few steps took at least; 0 when not to be asked."""
        if self._steps < self._calm_until or len(self._window) < SUDDEN_STEPS + ENOUGH:
            return 0
        steps = list(self._window)
        usual, latest = steps[:-SUDDEN_STEPS], steps[-SUDDEN_STEPS:]
        middle = sorted(sample.ns for sample in usual)[len(usual) // 2]
        if 1000 * min(sample.ns for sample in latest) < SUDDEN * middle:
            return 0
        fixed = fixed_ns(self._history)
        return min(compare(usual, [sample], fixed).permille for sample in latest)

    def _in_burst(self, burst: _Burst, sample: Sample) -> Change | None:
        theirs, left = burst.blocks[0]
        burst.blocks[0] = (theirs, left - 1)
        if left == 1:
            del burst.blocks[0]
        if theirs:
            burst.theirs.append(sample)
        else:
            burst.ours.append(sample)
            self._history.append(sample)
        if not theirs and burst.blocks:
            return None
        found = compare(burst.ours, burst.theirs, fixed_ns(self._history))
        if found.verdict == "slower":
            self._stay(burst, found)
        elif found.verdict == "faster" and self._convincing(burst, found):
            return self._switch(burst, found)
        elif not burst.blocks:
            self._prolong(burst, found)
        return None

    def _convincing(self, burst: _Burst, found: Comparison) -> bool:
        """In a race a gross difference counts at once. Else only the end of a burst counts, since who looks
        after every step sees what he hopes for, and outside a race not that of its first block.
        """
        if found.steps < ENOUGH:
            return burst.race
        return not burst.blocks and (burst.race or len(burst.theirs) > PROBE_STEPS)

    def _prolong(self, burst: _Burst, found: Comparison) -> None:
        """More steps of both for a challenger that looks faster, or in a race may be. Both sides' steps lie
        around the same moment, so that a drift of the machine counts for neither.
        """
        least = found.permille - (2 * found.error if burst.race else 0)
        if least > 1000 - HYSTERESIS or len(burst.theirs) >= MOST_STEPS:
            self._stay(burst, found)
            return
        if len(burst.theirs) <= PROBE_STEPS:
            burst.ours = burst.ours[-PROBE_STEPS:]
            burst.blocks.append((False, PROBE_STEPS))
        burst.blocks += [(True, PROBE_STEPS), (False, PROBE_STEPS)]

    def _stay(self, burst: _Burst, found: Comparison) -> None:
        """The mode in force stays. A slower challenger is looked at again when that is cheap."""
        cost = len(burst.theirs) * max(found.permille - 1000, 0)
        self._known[burst.challenger] = found.permille
        self._next_look[burst.challenger] = self._steps + min(max(PROBE_EVERY, cost // BUDGET), LONGEST)
        self._window = deque(burst.ours, maxlen=WINDOW)  # after a sudden change, only what is usual now
        self._look_at = self._usual_until = 0
        self._burst = None

    def _give_up(self, burst: _Burst) -> None:
        self._next_look[burst.challenger] = self._steps + PATIENCE
        self._look_at = 0
        self._burst = None

    def _switch(self, burst: _Burst, found: Comparison) -> Change:
        before = self.mode
        lately = sum(change.step > self._steps - LONGEST for change in self.changes)
        inverse = 1_000_000 // max(found.permille, 1)
        cost = min(len(burst.theirs), ENOUGH) * (inverse - 1000)
        wait = max(PROBE_EVERY << min(lately, 3), cost // BUDGET)
        del self._next_look[burst.challenger]
        self._next_look[before] = self._steps + min(wait, LONGEST)
        self._known = {before: inverse}
        reason = (
            f"a step with {found.misses} misses takes {_us(found.theirs_ns)} in {burst.challenger} and "
            f"{_us(found.ours_ns)} in {before}, medians of {len(burst.theirs)} and {len(burst.ours)} steps"
        )
        return self._enter(burst.challenger, burst.theirs, reason)

    def _enter(self, mode: Mode, samples: list[Sample], reason: str) -> Change:
        change = Change(self._steps, self.mode, mode, reason)
        self.mode, self.reason = mode, reason
        self._window = deque(samples, maxlen=WINDOW)
        self._history = deque(samples, maxlen=HISTORY)
        self._look_at = self._usual_until = 0
        self._burst = None
        self.changes.append(change)
        return change


def _us(ns: int) -> str:
    return f"{ns / 1000:,.0f} us"

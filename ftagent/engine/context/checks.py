"""Whether resumed prompts give what computing them from the first token gives, on the user's own requests.

A request that is chosen runs cold, so its reply is right whatever the anchor holds; beside it a shadow
resumes at the anchor and computes the rest of the prompt, for the logits behind it alone. Knows rows of
logits and counts; no pool, no tensor and no text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftagent.engine.context.visits import Match
from ftagent.engine.logits import Row
from ftagent.engine.stats import AnchorChecks, AnchorMismatch

# The root of the mean squared difference of two rows of logits, as a part of their spread (standard
# deviation): that of two rows that have nothing to do with each other is about 1.4. A row is not the same to
# the bit where chunks end elsewhere, and in BF16 less so than in float32.
TOLERANCE = 0.005
TOLERANCE_BF16 = 0.2


def tolerance_for(dtype: str) -> float:
    """`dtype` is that of computation, as torch names it."""
    return TOLERANCE if dtype in ("", "float32") else TOLERANCE_BF16


def row_difference(warm: Row, cold: Row) -> float:
    """How far `warm` is from `cold`, in units of the spread of `cold`; infinite when either is not finite."""
    gap = float(np.sqrt(np.mean(np.square(warm.astype(np.float64) - cold))))
    spread = float(np.std(cold))
    return gap / max(spread, 1e-12) if np.isfinite([gap, spread]).all() else float("inf")


@dataclass(slots=True, eq=False)
class Check:
    """One hit that is checked. `warm` and `cold` are the logits behind the prompt, once they are computed."""

    match: Match
    turn: int = 0  # of its conversation, from 1
    warm: Row | None = None
    cold: Row | None = None


class AnchorChecker:
    """Chooses hits and counts what came out. `share` of the hits is checked, evenly spread."""

    def __init__(self, share: float, tolerance: float) -> None:
        self.share = share
        self.tolerance = tolerance
        self._due = 1.0 if share else 0.0  # the first hit is checked
        self._hits = self._checked = self._wrong = 0
        self._newest: AnchorMismatch | None = None

    def wants(self) -> bool:
        """Called for each hit: whether it is one to check."""
        self._hits += 1
        self._due = min(self._due, 1.0) + self.share
        return self._due >= 1.0 and self.share > 0

    def begun(self) -> None:
        """A hit that was wanted is being checked; else the next one is wanted in its place."""
        self._due -= 1.0

    def judge(self, check: Check, anchor: str) -> AnchorMismatch | None:
        """Compare the two rows of a check. `anchor` says what stands at its position.

        Returns what is wrong; None when the rows agree.
        """
        assert check.warm is not None, "the shadow has not come to its end"
        assert check.cold is not None, "the request has not come to the end of its prompt"
        self._checked += 1
        difference = row_difference(check.warm, check.cold)
        if difference <= self.tolerance:
            return None
        self._wrong += 1
        tokens = int(check.warm.argmax()), int(check.cold.argmax())
        position = check.match.position
        self._newest = AnchorMismatch(check.turn, position, anchor, difference, self.tolerance, *tokens)
        return self._newest

    def counts(self) -> AnchorChecks | None:
        """None when nothing is checked."""
        return AnchorChecks(self._hits, self._checked, self._wrong, self._newest) if self.share else None


def describe(wrong: AnchorMismatch, dropped: int) -> str:
    """One line for people; `dropped` anchors went."""
    return (
        f"a hit was wrong: turn {wrong.turn} of a conversation, resumed at token {wrong.position} "
        f"({wrong.anchor}); the logits behind the prompt are off by {wrong.difference:.2g} of their spread "
        f"(tolerance {wrong.tolerance:g}), and the next token would be {wrong.token_warm} instead of "
        f"{wrong.token_cold}. The reply was computed without it, and {dropped} anchors that share its pages "
        "are dropped; please report this"
    )

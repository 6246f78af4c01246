"""Which way a prompt's experts take, and how a layer's experts are grouped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.ways import PrefillLoad, group_experts, routed_share, stream_ahead

# Tokens and the share of 256 experts (8 a token) that they were seen to ask for, per mille: the table of
# section 2c of the performance notes the constant was fitted to.
SEEN = {8: 130, 16: 210, 32: 320, 64: 450, 128: 590, 256: 760, 1024: 960}


@pytest.mark.parametrize("tokens", SEEN)
def test_the_expected_share_is_near_what_was_measured(tokens: int) -> None:
    assert abs(routed_share(tokens, 256, 8) * 1000 - SEEN[tokens]) < 40


def test_a_short_suffix_gathers_and_a_long_prompt_streams() -> None:
    def load(tokens: int, missing: int = 77) -> PrefillLoad:
        return PrefillLoad(tokens, 128, 8, missing, fetch_ns=180_000, device_ns=tokens * 1_000)

    assert not stream_ahead(load(8))
    assert not stream_ahead(load(64))
    assert stream_ahead(load(8192))
    assert stream_ahead(load(32768))
    answers = [stream_ahead(load(tokens)) for tokens in range(1, 4000)]
    assert answers == sorted(answers), "once it pays to stream it pays for all longer prompts"


@settings(deadline=None, max_examples=200)
@given(
    layer=st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=40),
    most_rows=st.integers(1, 100),
    most_missing=st.integers(1, 8),
)
def test_groups_cover_what_is_asked_for_once_and_keep_their_bounds(
    layer: list[tuple[int, bool]], most_rows: int, most_missing: int
) -> None:
    rows, missing = [count for count, _ in layer], [gone for _, gone in layer]
    groups = group_experts(rows, missing, most_rows, most_missing)
    covered = [expert for group in groups for expert in range(group.first, group.last)]
    assert covered == sorted(set(covered))
    assert {expert for expert, count in enumerate(rows) if count} <= set(covered)
    for group in groups:
        asked = [expert for expert in range(group.first, group.last) if rows[expert]]
        assert asked
        assert sum(rows[expert] for expert in asked) <= max(most_rows, max(rows[expert] for expert in asked))
        assert sum(missing[expert] for expert in asked) <= most_missing

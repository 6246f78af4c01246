"""Training rows: repeatable, of their length, weighted 1 exactly on the assistant's words."""

from __future__ import annotations

import random

import jsonschema
import numpy as np
import pytest

from ftagent.conversation import ToolCall
from ftagent.demo.training import samples, tasks, tools
from ftagent.demo.training.samples import Mix
from ftagent.demo.training.train import SMOKE, Rows
from tests.demo.conversations import conversation, tokenizer

MIX = Mix(length=700, rest=0.1, text_share=0.1, chat_share=0.3)


def test_a_row_depends_on_seed_stage_and_index_alone() -> None:
    stage = SMOKE[0]
    first, again = Rows(stage, 3, 100), Rows(stage, 3, 100)
    again[5]
    for left, right in zip(first[7], again[7], strict=True):
        assert left.equal(right)
    assert not first[7][0].equal(first[8][0])
    assert not first[7][0].equal(Rows(stage, 4, 100)[7][0])


@pytest.mark.parametrize("seed", range(5))
def test_rows_have_their_length_and_known_weights(seed: int) -> None:
    row = samples.row(random.Random(seed), MIX)
    assert len(row.ids) == len(row.weights) == MIX.length + 1
    assert row.ids.max() < tokenizer().vocab_size
    assert set(np.unique(row.weights)) <= {np.float16(MIX.rest), np.float16(0.3), np.float16(1.0)}


def by_control_tokens(ids: list[int]) -> list[bool]:
    """Which ids the assistant writes, told by control tokens alone: all after its opening, up to <|im_end|>.

    The opening is <|im_start|>assistant\\n<think>\\n, and </think>\\n\\n when nothing was thought.
    """
    opening = tokenizer().encode("<|im_start|>assistant\n<think>\n")
    skipped = tokenizer().encode("</think>\n\n")
    end = tokenizer().added_tokens["<|im_end|>"]
    own, i = [False] * len(ids), 0
    while i < len(ids):
        if ids[i : i + len(opening)] != opening:
            i += 1
            continue
        i += len(opening)
        if ids[i : i + len(skipped)] == skipped:
            i += len(skipped)
        stop = ids.index(end, i)
        own[i : stop + 1] = [True] * (stop + 1 - i)
        i = stop + 1
    return own


def test_weights_are_one_exactly_on_what_the_assistant_writes() -> None:
    for seed in range(60):
        ids, weights = samples.tokens_of(samples.rendered(conversation(seed)), 0.25)
        assert weights == [1.0 if own else 0.25 for own in by_control_tokens(ids)]


def test_every_call_fits_its_tools_schema() -> None:
    calls = 0
    for seed in range(400):
        rng = random.Random(f"calls/{seed}")
        specs, box = tools.toolbox(rng, rng.random(), rng.randint(0, 3))
        for step in tasks.exchange(rng, box).steps:
            (spec,) = [spec for spec in specs if spec.name == step.call.name]
            jsonschema.validate(dict(step.call.arguments), dict(spec.parameters))
            calls += 1
    assert calls >= 400


def test_conversations_hold_calls_of_offered_tools_only() -> None:
    for seed in range(100):
        whole = conversation(seed)
        offered = {spec.name for spec in whole.tools}
        blocks = [block for message in whole.messages for block in message.blocks]
        assert {block.name for block in blocks if isinstance(block, ToolCall)} <= offered

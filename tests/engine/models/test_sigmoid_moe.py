"""The choice of experts by sigmoids against the router of transformers' DeepSeek-V3."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from ftagent.engine.models.config import SigmoidRouting
from ftagent.engine.models.sigmoid_moe import choose


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_choices_and_weights(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 6))
    kept = data.draw(st.integers(1, groups))
    each = data.draw(st.integers(2, 9))
    per_token = data.draw(st.integers(1, kept * each))
    renormalise, scale = data.draw(st.booleans()), data.draw(st.sampled_from([1.0, 2.5]))
    torch.manual_seed(data.draw(st.integers(0, 10_000)))
    config = transformers.DeepseekV3Config(
        hidden_size=12, n_routed_experts=groups * each, n_group=groups, topk_group=kept,
        num_experts_per_tok=per_token, norm_topk_prob=renormalise, routed_scaling_factor=scale,
    )  # fmt: skip
    router = DeepseekV3TopkRouter(config)
    router.weight.data.normal_()
    router.e_score_correction_bias.normal_().mul_(data.draw(st.sampled_from([0.0, 0.1, 2.0])))
    with torch.no_grad():
        logits, expected_weights, expected = router(torch.randn(7, 12))
    routing = SigmoidRouting(groups, kept, scale)
    weights, chosen = choose(logits, router.e_score_correction_bias, per_token, routing, renormalise)
    ours, theirs = chosen.sort(), expected.sort()
    assert torch.equal(ours.values, theirs.values)
    torch.testing.assert_close(
        weights.gather(1, ours.indices), expected_weights.gather(1, theirs.indices), rtol=1e-6, atol=1e-7
    )


def test_the_best_of_all_come_first() -> None:
    logits = torch.tensor([[0.0, 3.0, -1.0, 2.0]])
    weights, chosen = choose(logits, torch.tensor([9.0, 0, 0, 0]), 3, SigmoidRouting(), renormalise=False)
    assert chosen.tolist() == [[0, 1, 3]]
    assert weights.tolist()[0] == pytest.approx(torch.sigmoid(logits[0, [0, 1, 3]]).tolist())

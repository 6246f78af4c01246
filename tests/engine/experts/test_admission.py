"""A prompt's hottest experts get their layer's slots."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.experts.admission import admissions
from ftagent.engine.experts.policy import ExpertPolicy

LAYERS, EXPERTS = 3, 12


@settings(deadline=None, max_examples=200)
@given(
    slots=st.integers(LAYERS, LAYERS * EXPERTS),
    resident=st.sets(st.tuples(st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1))),
    rows=st.lists(st.integers(0, 5), min_size=EXPERTS, max_size=EXPERTS),
    data=st.data(),
)
def test_the_layer_holds_the_experts_with_most_rows(
    slots: int, resident: set[tuple[int, int]], rows: list[int], data: st.DataObject
) -> None:
    policy = ExpertPolicy(LAYERS, EXPERTS, slots, floor=0)
    for layer, expert in sorted(resident)[:slots]:
        policy.place(layer, expert)
    before = {expert for expert in range(EXPERTS) if policy.lookup(0, expert) is not None}
    others = [policy.layer_resident(layer) for layer in (1, 2)]
    computed = data.draw(st.integers(0, EXPERTS))
    staged = [expert for expert in range(computed) if rows[expert] and expert not in before]
    found = admissions(policy, 0, rows, staged, computed)
    for admission in found:
        if admission.victim is not None:
            policy.remove(0, admission.victim)
        placement = policy.place(0, admission.expert)
        assert placement is not None
        assert placement.evicted is None
    policy.check_integrity()
    assert [policy.layer_resident(layer) for layer in (1, 2)] == others, "other layers keep theirs"
    after = {expert for expert in range(EXPERTS) if policy.lookup(0, expert) is not None}
    movable = {expert for expert in after if expert < computed or not rows[expert]}
    out = [rows[expert] for expert in staged if expert not in after]
    if movable and out:
        assert min(rows[expert] for expert in movable) >= max(out)
    assert before - after <= {admission.victim for admission in found}


def test_free_slots_are_shared_among_the_layers() -> None:
    policy = ExpertPolicy(4, 8, 8, floor=0)
    found = admissions(policy, 1, [3, 1, 4, 1, 5, 9, 2, 6], list(range(8)), 8)
    assert [admission.expert for admission in found] == [5, 7]
    assert all(admission.victim is None for admission in found)

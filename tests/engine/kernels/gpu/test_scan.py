"""The delta rule in chunks on a device, against the recurrence token by token in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftagent.engine.kernels.delta_rule import CHUNK, DeltaInputs, chunked, unit_length
from ftagent.engine.kernels.gpu import scan
from ftagent.engine.kernels.gpu.scan import delta_prefill, tiling
from tests.engine.kernels.compiling import CAPABILITIES, Case, assert_no_spills, compile_all, cuobjdump
from tests.engine.kernels.gpu.delta_reference import token_by_token

MODULE = "ftagent.engine.kernels.gpu.scan"
NAN = float("nan")

Constants = dict[str, int | float | bool | str | None]


def random_inputs(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], device: torch.device, alike: float = 0.0
) -> DeltaInputs:
    """Rows with key and value heads `heads`; keys share a direction by `alike`, decays are slow and fast."""
    key_heads, value_heads = heads
    key_dim, value_dim = dims
    shape = (tokens, key_heads, key_dim)
    common = torch.randn(key_heads, key_dim, device=device) * alike
    return DeltaInputs(
        unit_length(torch.randn(shape, device=device)) * key_dim**-0.5,
        unit_length(torch.randn(shape, device=device) * (1 - alike) + common),
        torch.randn(tokens, value_heads, value_dim, device=device),
        -torch.rand(tokens, value_heads, device=device)
        * torch.tensor([0.01, 3.0], device=device)[torch.arange(value_heads, device=device) % 2],
        torch.rand(tokens, value_heads, device=device),
    )


def repeated(given: DeltaInputs) -> DeltaInputs:
    group = given.value.shape[1] // given.key.shape[1]
    return given._replace(
        query=given.query.repeat_interleave(group, 1), key=given.key.repeat_interleave(group, 1)
    )


def poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspace and outputs start as NaN, as memory that others have used may."""
    empty = torch.empty

    def poisoned(*size: int, **options: object) -> torch.Tensor:
        return empty(*size, **options).fill_(NAN)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)


def check(given: DeltaInputs, state: torch.Tensor, atol: float, exact: bool = True) -> None:
    expected, states = token_by_token(repeated(given), state)
    found = delta_prefill(given, state, exact=exact)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(state.double(), states[-1], rtol=0, atol=atol)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_odd_sizes_equal_the_recurrence(device: torch.device, data: st.DataObject) -> None:
    tokens = data.draw(st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 200])))
    key_heads, group = data.draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (1, 3)]))
    dims = data.draw(st.sampled_from([(16, 8), (16, 16), (12, 24), (64, 8), (64, 16)]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    alike = data.draw(st.sampled_from([0.0, 0.9]))
    heads = (key_heads, key_heads * group)
    with pytest.MonkeyPatch.context() as patch:
        given_rows = random_inputs(tokens, heads, dims, device, alike)
        state = torch.randn(heads[1], *dims, device=device)
        poison_new_memory(patch)
        check(given_rows, state, 2e-5)


@pytest.mark.parametrize(("tokens", "dims"), [(65, (128, 128)), (130, (64, 128)), (300, (16, 16))])
def test_the_shapes_of_real_heads(tokens: int, dims: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(tokens)
    check(random_inputs(tokens, (1, 2), dims, device), torch.randn(2, *dims, device=device), 2e-5)


def test_equal_keys_and_whole_steps_are_solved_exactly(device: torch.device) -> None:
    """Then A is full of ones: its powers pass what float32 holds exactly, its inverse is simple."""
    torch.manual_seed(0)
    given = random_inputs(150, (1, 1), (16, 8), device, alike=1.0)
    given = given._replace(beta=torch.ones_like(given.beta), decay=torch.zeros_like(given.decay))
    check(given, torch.randn(1, 16, 8, device=device), 5e-5)


def test_extreme_decays_stay_finite(device: torch.device) -> None:
    given = random_inputs(130, (2, 2), (16, 8), device)
    given = given._replace(decay=torch.full((130, 2), -80.0, device=device))
    check(given, torch.randn(2, 16, 8, device=device), 1e-5)


def test_rows_may_lie_apart(device: torch.device) -> None:
    """As they do in the tensor that the convolution writes."""
    torch.manual_seed(1)
    given = random_inputs(70, (1, 2), (16, 8), device)
    rows = torch.cat([part.flatten(1) for part in given[:3]], dim=1)
    query, key, value = rows.tensor_split((16, 32), dim=1)
    apart = given._replace(query=query.view(70, 1, 16), key=key.view(70, 1, 16), value=value.view(70, 2, 8))
    check(apart, torch.randn(2, 16, 8, device=device), 1e-5)


@pytest.mark.parametrize("segment", [64, 128])
def test_segments(segment: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow each other, into memory that is given."""
    monkeypatch.setattr(scan, "SEGMENT", segment)
    torch.manual_seed(segment)
    given = random_inputs(192, (1, 2), (16, 8), device)
    start = torch.randn(2, 16, 8, device=device)
    state, out = start.clone(), torch.full((192, 2, 8), NAN, device=device)
    expected, states = token_by_token(repeated(given), start)
    assert delta_prefill(given, state, out=out) is out
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), states[-1], rtol=0, atol=1e-5)


def test_it_goes_on_where_it_stopped(device: torch.device) -> None:
    torch.manual_seed(2)
    given = random_inputs(100, (2, 2), (16, 8), device)
    state = torch.randn(2, 16, 8, device=device)
    expected, states = token_by_token(given, state)
    found = torch.cat([delta_prefill(given.rows(a, b), state) for a, b in ((0, 1), (1, 70), (70, 100))])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), states[-1], rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnADevice:
    @pytest.mark.parametrize("exact", [True, False])
    @pytest.mark.parametrize("tokens", [1, 64, 300, 9000])
    def test_many_heads(self, tokens: int, exact: bool, device: torch.device) -> None:
        torch.manual_seed(tokens)
        given = random_inputs(tokens, (16, 32), (128, 128), device, alike=0.5)
        state = torch.randn(32, 128, 128, device=device) * 0.1
        wide = repeated(DeltaInputs(*(part.double() for part in given)))
        expected, last = token_by_token(wide, state) if tokens <= 300 else (None, [state.clone()])
        if expected is None:
            expected = chunked(repeated(given), last[0])
        found = delta_prefill(given, state, exact=exact)
        atol = 5e-5 if exact else 1e-2
        torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=atol)
        torch.testing.assert_close(state.double(), last[-1].double(), rtol=0, atol=atol)

    def test_64k_tokens_need_less_than_two_gigabytes_beside_the_rows(self, device: torch.device) -> None:
        given = random_inputs(65536, (16, 32), (128, 128), device)
        state = torch.zeros(32, 128, 128, device=device)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = delta_prefill(given, state, exact=False)
        assert torch.cuda.max_memory_allocated() - before - out.nbytes < 2 * 10**9
        assert bool(torch.isfinite(out).all())


def cases(dims: tuple[int, int], exact: bool, stages: int) -> list[Case]:
    tile, width, precision = tiling(*dims, exact)
    shape: Constants = {"DK": dims[0], "DV": dims[1], "CHUNK": CHUNK, "PRECISION": precision}
    prepare = Case(
        MODULE, "_prepare", (*["*fp32"] * 8, *["i32"] * 5), {"TILE": tile, "BLOCK": scan.BLOCK, **shape}, 8, 1
    )
    advance = Case(
        MODULE,
        "_advance",
        (*["*fp32"] * 6, *["i32"] * 4),
        {"DK_TILE": dims[0], "TILE": width, **shape},
        4,
        stages,
    )
    finish = Case(MODULE, "_finish", (*["*fp32"] * 6, *["i32"] * 3), {"TILE": tile, **shape}, 4, 1)
    return [prepare, advance, finish]


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
@pytest.mark.parametrize(("dims", "exact"), [((128, 128), False), ((64, 64), True)])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernels_compile_without_spills(dims: tuple[int, int], exact: bool, capability: int) -> None:
    assert_no_spills(cases(dims, exact, stages=1), [capability])


@pytest.mark.slow
@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside Triton")
def test_chunks_loaded_ahead_fit_the_shared_memory_of_roomy_devices() -> None:
    for used in compile_all(cases((128, 128), exact=False, stages=2)[1:2], (80, 90)):
        assert used.shared <= 163 * 2**10
        assert not used.stack

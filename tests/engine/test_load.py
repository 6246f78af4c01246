"""What `load_runner` refuses, in one line, and what it chooses."""

from __future__ import annotations

import errno
import json
import mmap
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftagent.engine.api import LoadState
from ftagent.engine.experts.bank import ExpertFormat
from ftagent.engine.experts.heat import fingerprint, heat_file, save_heat
from ftagent.engine.experts.loading import find_names
from ftagent.engine.experts.pool import ExpertPool
from ftagent.engine.load import Opened, choose_device, load_runner
from ftagent.engine.models.registry import model_config
from ftagent.engine.options import EngineOptions
from ftagent.engine.reading import filled_banks
from ftagent.engine.weights.safetensors import Checkpoint, open_checkpoint
from ftagent.engine.weights.source import find_prefix
from ftagent.errors import ConfigError, FtError, LoadFailed
from tests.engine.experts.test_host_memory import Ledger
from tests.engine.models.driving import logits_by_chunks
from tests.engine.models.tiny import Oracle


@pytest.fixture
def model(tmp_path: Path) -> Oracle:
    kinds = ["linear_attention", "full_attention"]
    return Oracle("qwen3_5_moe", tmp_path, 0, {"num_hidden_layers": 2, "layer_types": kinds})


def change_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(directory: Path, options: EngineOptions | None = None) -> str:
    with pytest.raises(FtError) as caught:
        load_runner(directory, options or EngineOptions())
    assert isinstance(caught.value, LoadFailed | ConfigError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_family_lists_the_known(model: Oracle) -> None:
    change_config(model.directory, model_type="bert")
    words = refusal(model.directory)
    assert "'bert'" in words
    assert "qwen3_moe" in words
    assert "qwen3_5_moe" in words


def test_missing_directory_and_config(tmp_path: Path) -> None:
    assert "no such model directory" in refusal(tmp_path / "absent")
    assert "config.json: not found" in refusal(tmp_path)
    (tmp_path / "config.json").mkdir()
    assert "config.json: cannot be read" in refusal(tmp_path)


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert "model.gguf: a file, not a model directory" in refusal(file)


def test_missing_tensors_are_named(model: Oracle) -> None:
    file = model.directory / "model.safetensors"
    tensors = load_file(file)
    gone = [name for name in tensors if name.endswith(("layers.0.linear_attn.A_log", "model.norm.weight"))]
    assert gone
    for name in gone:
        del tensors[name]
    save_file(tensors, file)
    words = refusal(model.directory)
    assert all(name in words for name in gone)


@pytest.mark.parametrize("name", ["layers.1.self_attn.k_proj.weight", "down_proj"])
def test_a_wrong_shape_is_named_with_both_shapes(model: Oracle, name: str) -> None:
    file = model.directory / "model.safetensors"
    tensors = load_file(file)
    full = next(found for found in tensors if name in found and "shared" not in found)
    right = list(tensors[full].shape)
    tensors[full] = tensors[full][..., :-1].contiguous()
    save_file(tensors, file)
    words = refusal(model.directory)
    assert full in words
    assert str(list(tensors[full].shape)) in words
    assert str(right) in words


def test_an_fp8_tensor_without_scales_is_named(model: Oracle) -> None:
    file = model.directory / "model.safetensors"
    tensors = load_file(file)
    name = next(found for found in tensors if found.endswith("layers.1.self_attn.o_proj.weight"))
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, file)
    assert name + "_scale_inv" in refusal(model.directory)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "64"), ("num_experts", 0), ("hidden_act", "gelu"), ("num_key_value_heads", 3)],
)
def test_a_bad_config_value_is_named(model: Oracle, key: str, value: object) -> None:
    change_config(model.directory, **{key: value})
    words = refusal(model.directory)
    assert "config.json" in words


def test_a_text_config_inside_is_read(model: Oracle) -> None:
    tokens = model.tokens(20)
    expected = logits_by_chunks(load_runner(model.directory, EngineOptions()), tokens, [20])[19]
    path = model.directory / "config.json"
    inner = json.loads(path.read_text())
    path.write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": inner, "vision_config": {}}))
    found = logits_by_chunks(load_runner(model.directory, EngineOptions()), tokens, [20])[19]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (EngineOptions(device="gpu"), "device 'gpu' is not known; use auto, cpu, cuda or cuda:N"),
        (EngineOptions(device="cuda:x"), "device 'cuda:x' is not known"),
        (EngineOptions(context=5000), "context 5000 is more than the 1024"),
        (EngineOptions(mode="fused", experts="3"), "mode fused needs slots for all 16 experts"),
        (EngineOptions(experts="many"), "'many'"),
        (EngineOptions(experts="1.5"), "not a fraction"),
        (EngineOptions(ram="1KiB"), "GiB of memory"),
        (EngineOptions(ram="lots"), "'lots'"),
        (EngineOptions(vram="1KiB"), "GiB of device memory (vram)"),
        (EngineOptions(vram="lots"), "'lots'"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(
    model: Oracle, options: EngineOptions, words: str
) -> None:
    assert words in refusal(model.directory, options)


@pytest.mark.parametrize("options", [EngineOptions(ram="300KiB"), EngineOptions(vram="200KiB")])
def test_a_model_that_does_not_fit_is_refused_before_a_weight_is_read(
    model: Oracle, options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(checkpoint: Checkpoint, name: str, *_: object) -> NoReturn:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(Checkpoint, "tensor", read)
    monkeypatch.setattr(Checkpoint, "read_into", read)
    words = refusal(model.directory, options)
    assert re.search(
        r"needs \d+\.\d+ GiB of (memory|device memory \(vram\)), \d+\.\d+ GiB may be used", words
    )


def test_vram_takes_the_context_first_and_gives_the_rest_to_experts(model: Oracle) -> None:
    """The bytes of dense weights, one context and the states are counted here from the tensors themselves."""
    unbound = load_runner(model.directory, EngineOptions(context=640))
    assert unbound.experts is not None
    expert = unbound.experts.slot_bytes
    routed = sum(p.numel() for name, p in model.model.named_parameters() if ".experts." in name)
    weights = sum(p.numel() for p in model.model.parameters())
    pages = 640 // unbound.kv.page_size
    states = unbound.recurrent.conv.nbytes + unbound.recurrent.recurrent.nbytes
    fixed = 4 * (weights - routed) + pages * unbound.kv.page_bytes + states
    bound = load_runner(model.directory, EngineOptions(context=640, vram=str(fixed + 5 * expert + 1)))
    assert bound.experts is not None
    assert (bound.kv.total, bound.experts.slots, bound.experts.mode) == (pages, 5, "hybrid")
    words = refusal(model.directory, EngineOptions(context=640, vram=str(fixed + 5 * expert), experts="6"))
    assert "device memory" in words


def test_info_and_pools(model: Oracle) -> None:
    runner = load_runner(
        model.directory, EngineOptions(model="x", context=600, max_running=3, experts="0.25")
    )
    assert runner.info.context == 600
    assert runner.info.vocab == 211
    assert runner.info.family == "qwen3_5_moe"
    assert not runner.info.embedded
    assert runner.recurrent.total == 3
    assert runner.kv.total * runner.kv.page_size >= 600
    assert runner.experts is not None
    assert runner.experts.slots == 4
    counted = sum(
        p.numel() for name, p in model.model.named_parameters() if p.dim() > 1 and "conv1d" not in name
    )
    assert runner.info.parameters == counted


def test_loading_and_a_step_leave_torchs_compiler_alone(model: Oracle) -> None:
    """It costs seconds and over a hundred MiB."""
    program = (
        "import sys; from pathlib import Path; from ftagent.engine.load import load_runner\n"
        "from ftagent.engine.options import EngineOptions; from ftagent.engine.chunk import Chunk\n"
        "runner = load_runner(Path(sys.argv[1]), EngineOptions(threads=1))\n"
        "for n in (5, 1):\n"
        "    pages, slot = runner.kv.allocate(1), runner.recurrent.allocate()\n"
        "    runner.step([Chunk((1,) * n, 0, pages, slot, True)])\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(model.directory)], check=True, timeout=60)


def test_a_device_that_is_not_there_is_refused(model: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = refusal(model.directory, EngineOptions(device="cuda:0"))
    assert "device 'cuda:0' cannot be used" in words
    assert "use cpu or auto" in words
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    words = refusal(model.directory, EngineOptions(device="cuda:2"))
    assert "this machine has 2, cuda:0 to cuda:1" in words


def test_auto_takes_the_device_for_models_that_are_not_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_device("auto", 10**7) == torch.device("cpu")
    assert choose_device("auto", 10**10) == torch.device("cuda", 0)
    assert choose_device("cpu", 10**10) == torch.device("cpu")
    assert choose_device("cuda:1", 10**7) == torch.device("cuda", 1)
    assert choose_device("cuda", 10**7) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", 10**10) == torch.device("cpu")


def test_a_device_without_bf16_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(
        ConfigError, match=r"'cuda:1' .*: cuda:1 has compute capability 7\.5, and 8\.0 is needed"
    ):
        choose_device("cuda:1", 10**10)
    assert choose_device("auto", 10**10) == torch.device("cpu")
    assert "the model runs on the CPU: cuda:0 has compute capability 7.5" in caplog.text


def opened_of(model: Oracle, dtype: torch.dtype) -> Opened:
    """As for a device: experts converted to `dtype`."""
    config, checkpoint = model_config(model.directory), open_checkpoint(model.directory)
    prefix = find_prefix(checkpoint)
    names = tuple(find_names(checkpoint, prefix, layer) for layer in config.moe_layers)
    formats = tuple(ExpertFormat(dtype) for _ in names)
    return Opened(
        model.directory,
        EngineOptions(),
        config,
        checkpoint,
        prefix,
        dtype,
        torch.device("cpu"),
        names,
        formats,
        dense=0,
    )


def test_banks_of_a_device_hold_records_and_are_pinned_while_dense_weights_are_read(model: Oracle) -> None:
    opened, ledger = opened_of(model, torch.bfloat16), Ledger()
    with filled_banks(opened, opened.formats, ledger) as banks:
        pass
    assert set(ledger.held) == {bank.address(0) for bank in banks}
    state = dict(model.model.named_parameters())
    for layer, bank in enumerate(banks):
        assert bank.pinned
        for expert in range(bank.experts):
            gate, up = state[f"model.layers.{layer}.mlp.experts.gate_up_proj"][expert].chunk(2)
            down = state[f"model.layers.{layer}.mlp.experts.down_proj"][expert]
            assert torch.equal(bank.records(expert), torch.stack((gate, up, down.t()), dim=1).bfloat16())
        bank.close()
    assert not ledger.held


@pytest.mark.parametrize("error", [RuntimeError("out of device memory"), KeyboardInterrupt()])
def test_a_later_step_that_fails_leaves_nothing_registered(model: Oracle, error: BaseException) -> None:
    opened, ledger = opened_of(model, torch.float32), Ledger()

    def fail() -> None:
        with filled_banks(opened, opened.formats, ledger) as banks:
            deadline = time.monotonic() + 60
            while not all(bank.pinned for bank in banks):
                assert time.monotonic() < deadline
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not ledger.held


def test_banks_that_cannot_be_mapped_are_refused(model: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    opened = opened_of(model, torch.float32)
    with pytest.raises(LoadFailed, match="no memory for the experts"), filled_banks(opened, opened.formats):
        pass


def test_saved_heat_says_which_experts_are_resident_first(
    model: Oracle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    heat = [[0] * 8, [0] * 8]
    heat[1][5], heat[0][6] = 9, 4
    save_heat(heat_file(fingerprint(open_checkpoint(model.directory))), heat)
    runner = load_runner(model.directory, EngineOptions(experts="2", mode="offload"))
    assert isinstance(runner.experts, ExpertPool)
    policy = runner.experts._policy
    assert policy.lookup(1, 5) is not None
    assert policy.lookup(0, 6) is not None
    used = runner.experts.heat()
    assert [len(layer) for layer in used] == [8, 8]
    assert used[1][5] > 0
    assert used[1][4] == 0


def test_progress_counts_all_bytes_of_the_weights(model: Oracle) -> None:
    seen: list[LoadState] = []
    load_runner(model.directory, EngineOptions(), progress=seen.append)
    assert seen[0] == LoadState("checking")
    assert {state.phase for state in seen[1:]} == {"reading"}
    assert len({state.total for state in seen[1:]}) == 1
    assert "GiB of experts from safetensors" in seen[-1].how
    assert seen[-1].done == seen[-1].total > 0
    assert seen[1:] == sorted(seen[1:])

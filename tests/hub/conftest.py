"""A small repository on a hub of the loopback, and directories of this test alone to pull it into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ftagent.errors import FtError
from ftagent.hub import fetch
from ftagent.hub.pull import Order, Pulled, pull
from tests.support.hub_server import HubServer, Repository, serving, small_repository

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
BESIDE = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
NEEDED = BESIDE | {"chat_template.jinja", INDEX, FIRST, SECOND}


class World(NamedTuple):
    hub: HubServer
    repository: Repository
    said: list[str]

    def pull(self, **order: Any) -> Pulled:
        return pull(Order("lab/tiny", endpoint=self.hub.url, **order), lambda *_: None, self.said.append)

    def refused(self, **order: Any) -> str:
        with pytest.raises(FtError) as caught:
            self.pull(**order)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    monkeypatch.setattr(fetch, "AT_ONCE", 1)  # so that the order of requests is known
    repository = small_repository()
    with serving(repository) as hub:
        yield World(hub, repository, [])


def visible(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.name != ".ftagent"}


def same(world: World, directory: Path) -> bool:
    return all((directory / name).read_bytes() == world.repository.files[name] for name in NEEDED)

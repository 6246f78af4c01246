"""The hub of our tests against the hub's own client."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from tests.support.hub_server import serving, small_repository


def test_the_hubs_own_client_lists_and_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # else it asks the real one first
    repository = small_repository()
    repository.token = "hf_s3cret"
    with serving(repository) as hub:
        api = HfApi(endpoint=hub.url, token="hf_s3cret")
        info = api.model_info("lab/tiny", files_metadata=True)
        assert {item.rfilename for item in info.siblings or ()} == set(repository.files)
        for item in info.siblings or ():
            found = api.hf_hub_download("lab/tiny", item.rfilename, local_dir=tmp_path, revision=info.sha)
            data = repository.files[item.rfilename]
            assert Path(found).read_bytes() == data
            assert item.size == len(data)
        assert any(item.path.startswith("/cdn/") for item in hub.seen)

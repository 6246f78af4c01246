"""Pulls a model: asks what there is, checks what can be checked before the first byte, fetches the rest."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ftagent.errors import ConfigError, LoadFailed, PullFailed
from ftagent.hub import store
from ftagent.hub.fetch import Fetcher, Progress, is_whole, partial_path
from ftagent.hub.files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    Listing,
    RemoteFile,
    has_index,
    must_be_repo,
    needed,
)
from ftagent.hub.store import Record

if TYPE_CHECKING:
    from ftagent.hub.remote import Hub

Say = Callable[[str], None]

READ_METHODS = ("fp8", "mxfp4")  # as config.json calls the formats of docs/models.md


@dataclass(frozen=True, slots=True)
class Order:
    """What to pull. Without a `revision` it is that of the pull before, at first `main`. `target` is the
    directory, if it is not the repository's own place; `endpoint` as in `HF_ENDPOINT`. `force` pulls what the
    engine would refuse to load.
    """

    repo: str
    revision: str | None = None
    target: Path | None = None
    force: bool = False
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is there, whole and checked. `fetched` bytes of its `bytes` came with this pull."""

    directory: Path
    revision: str
    commit: str
    files: int
    bytes: int
    fetched: int
    seconds: float
    linked: bool  # whether the repository's name leads to `directory`


def pull(order: Order, progress: Progress, say: Say) -> Pulled:
    """Bring a model into its directory, or what is missing of it. `say` gets what a person should know.

    Raises ConfigError for a name that is none, LoadFailed for a model that the engine does not know,
    PullFailed for all that the hub, the network and the disk refuse.
    """
    must_be_repo(order.repo)
    if order.revision is not None and not order.revision.strip():
        raise ConfigError("--revision is empty; give a branch, a tag or a commit")
    from ftagent.hub.remote import ConnectionLost, Hub

    began = time.monotonic()
    hub = Hub(order.repo, order.endpoint)
    directory = _directory(order)
    revision = order.revision or _earlier(order.repo, directory) or "main"
    try:
        listing = hub.listing(revision)
        index = listing.find(INDEX) if has_index(listing) else None
        files = needed(listing, hub.read(listing.commit, index) if index else None)
        _must_be_known(hub, listing, order.force, say)
    except ConnectionLost as error:
        raise PullFailed(f"{error}; check the connection, the proxy and HF_ENDPOINT, and run again") from None
    total = sum(file.size for file in files)
    with _errors_named(directory):
        with store.opened(directory):
            fetched = _bring(hub, revision, listing, files, directory, progress)
        linked = order.target is None or store.link(order.repo, directory) == directory.resolve()
    return Pulled(
        directory, revision, listing.commit, len(files), total, fetched, time.monotonic() - began, linked
    )


def _directory(order: Order) -> Path:
    own = store.place(order.repo)
    if order.target is None and own.is_symlink() and not own.exists():
        own.unlink()  # led to a directory that is gone
    directory = own if order.target is None else order.target.expanduser()
    if directory.exists() and not directory.is_dir():
        raise PullFailed(f"{directory}: a file, not a directory; give another one with --to")
    return directory


def _earlier(repo: str, directory: Path) -> str | None:
    record = store.read_record(directory)
    return record.revision if record and record.repo == repo else None


@contextmanager
def _errors_named(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PullFailed(
            f"{error.filename or directory}: {error.strerror or error}; mend that, or give another directory "
            "with --to"
        ) from error


def _must_be_known(hub: Hub, listing: Listing, force: bool, say: Say) -> None:
    """Hold config.json against the families of the engine, and against the formats that it reads."""
    from ftagent.engine.models.registry import model_config

    config = listing.find(CONFIG)
    assert config is not None
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / CONFIG
        file.write_bytes(hub.read(listing.commit, config))
        try:
            model_config(Path(scratch))
            method = _quantisation(json.loads(file.read_bytes()))
            if method is None or method in READ_METHODS:
                return
            known = " and ".join(READ_METHODS)
            wrong = (
                f"{listing.repo}/{CONFIG}: weights quantised by {method!r} are not read, those by {known} are"
            )
        except LoadFailed as error:
            wrong = str(error).replace(str(file), f"{listing.repo}/{CONFIG}")
    if not force:
        raise LoadFailed(f"{wrong}; nothing was downloaded, --force pulls it all the same")
    say(f"WARNING: {wrong}; pulled all the same (--force)")


def _quantisation(config: dict[str, Any]) -> str | None:
    """`quant_method` of a config.json, at the top or of the text model."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        found = part.get("quantization_config")
        if isinstance(found, dict) and found.get("quant_method") is not None:
            return str(found["quant_method"])
    return None


def _bring(
    hub: Hub,
    revision: str,
    listing: Listing,
    files: Sequence[RemoteFile],
    directory: Path,
    progress: Progress,
) -> int:
    """Fetch what is missing into `directory`, which is locked. Returns the bytes that were missing."""
    old = store.read_record(directory)
    if old is not None and old.repo != listing.repo:
        raise PullFailed(f"{directory}: holds {old.repo}; give another directory with --to")
    old = old or Record(listing.repo, revision, listing.commit, False)
    _must_be_alone(directory, files, old)
    record = replace(old, revision=revision, commit=listing.commit, complete=False)
    missing = []
    for file in files:
        if _is_there(directory / file.name, file, old, progress):
            record = record.with_file(file, directory / file.name)
        else:
            missing.append(file)
    total = sum(file.size for file in missing)
    have = sum(_begun(partial_path(directory, listing.commit, file), file) for file in missing)
    _must_have_room(directory, total - have)
    store.write_record(directory, record)

    def arrived(file: RemoteFile) -> None:
        nonlocal record
        record = record.with_file(file, directory / file.name)
        store.write_record(directory, record)

    Fetcher(hub, listing.commit, directory, have, total).run(missing, progress, arrived)
    _clear(directory, files, record)
    kept = {file.name: record.files[file.name] for file in files}
    store.write_record(directory, replace(record, complete=True, files=kept))
    return total - have


def _is_there(path: Path, file: RemoteFile, record: Record, progress: Progress) -> bool:
    """Whether a file is the hub's already. Raises PullFailed for one that is not, and is of no pull."""
    if not path.exists() and not path.is_symlink():
        return False
    if not path.is_file():
        raise PullFailed(f"{path}: no file; move it away, or give another directory with --to")
    known = record.untouched(path)
    if known is not None:
        return bool(file.digest) and known.digest == file.digest
    if file.digest and path.stat().st_size == file.size and is_whole(path, file, progress):
        return True
    raise PullFailed(
        f"{path}: is not what {record.repo} has, and was not left so by a pull; move it away, or give "
        "another directory with --to"
    )


def _must_be_alone(directory: Path, files: Sequence[RemoteFile], record: Record) -> None:
    """The loader takes all weights of a directory for one model: there must be no others."""
    names = {file.name for file in files}
    for path in sorted(directory.iterdir()):
        foreign = path.suffix in WEIGHTS or path.name == INDEX
        if foreign and path.name not in names and record.untouched(path) is None:
            raise PullFailed(
                f"{path}: would be taken for a part of {record.repo}; move it away, or give another "
                "directory with --to"
            )


def _begun(partial: Path, file: RemoteFile) -> int:
    """Bytes of a file that are there from an earlier pull."""
    if not partial.exists():
        return 0
    size = partial.stat().st_size
    if size > file.size:
        partial.unlink()
        return 0
    return size


def _must_have_room(directory: Path, need: int) -> None:
    free = shutil.disk_usage(directory).free
    if need > free:
        raise PullFailed(
            f"{directory}: needs {need} bytes ({need / 2**30:.2f} GiB), {free} are free "
            f"({free / 2**30:.2f} GiB); make room, or give another disk with --to"
        )


def _clear(directory: Path, files: Sequence[RemoteFile], record: Record) -> None:
    """Remove what an earlier revision had and this one has not, and what was begun of it."""
    names = {file.name for file in files}
    for name in set(record.files) - names:
        path = directory / name
        if path.is_file() and record.untouched(path) is not None:
            path.unlink()
    for partial in (directory / store.OURS).glob("*.part"):
        partial.unlink()

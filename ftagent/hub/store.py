"""Where pulled models are, and the record that each directory has of what was pulled into it.

A model is in the user's data directory under its repository's name; one that was pulled to another place has
a symbolic link there. The record and files that are not whole are in `.ftagent` inside the model's directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ftagent import paths
from ftagent.errors import LoadFailed, PullFailed
from ftagent.hub.files import RemoteFile, is_repo

OURS = ".ftagent"
_RECORD = "pull.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """A file as it was left: what the hub calls it, and what tells that nobody has touched it since."""

    digest: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Record:
    """What was pulled into a directory. `revision` is what was asked for, `commit` what it was then."""

    repo: str
    revision: str
    commit: str
    complete: bool
    files: Mapping[str, Kept] = field(default_factory=dict)

    def with_file(self, file: RemoteFile, path: Path) -> Record:
        state = path.stat()
        kept = Kept(file.digest, state.st_size, state.st_mtime_ns)
        return replace(self, files={**self.files, file.name: kept})

    def untouched(self, path: Path) -> Kept | None:
        """What is known of a file of the directory, unless it has been changed since."""
        kept = self.files.get(path.name)
        state = path.stat()
        return kept if kept and (kept.size, kept.mtime_ns) == (state.st_size, state.st_mtime_ns) else None


def models_dir() -> Path:
    """The directory of all pulled models."""
    return paths.data_dir() / "models"


def place(repo: str) -> Path:
    """Where a repository is kept, or will be."""
    return models_dir() / repo


def pulled() -> Iterator[tuple[Path, Record]]:
    """All models that were pulled, with their records, by name."""
    for directory in sorted(models_dir().glob("*/*")):
        record = read_record(directory)
        if record is not None:
            yield directory, record


def model_path(model: str) -> str:
    """What `--model` says, as the engine takes it: the directory of a pulled repository, all else as given.

    Raises LoadFailed for a repository that was not pulled, or not to its end.
    """
    if not is_repo(model) or Path(model).exists():
        return model
    directory = place(model)
    if not directory.is_dir():
        raise LoadFailed(
            f"{model}: no such model directory, and no model of that name has been pulled; "
            f"`ftagent pull {model}` fetches it"
        )
    record = read_record(directory)
    if record is not None and not record.complete:
        raise LoadFailed(
            f"{model} was not pulled to its end ({directory}); `ftagent pull {model}` goes on where it ended"
        )
    return str(directory)


def read_record(directory: Path) -> Record | None:
    """The record of a directory; None where there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads((directory / OURS / _RECORD).read_bytes())
        files = {name: Kept(**kept) for name, kept in found.pop("files").items()}
        return Record(**found, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(directory: Path, record: Record) -> None:
    """Replace the record at once or not at all."""
    file = directory / OURS / _RECORD
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".new")
    partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    os.replace(partial, file)


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[None]:
    """The directory, made if need be, for one pull at a time; what stays empty is removed again.

    Raises PullFailed while another pull is at work there.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullFailed(f"{directory}: another pull is writing here; wait for its end") from None
        yield
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):  # not empty, as it should be
            for path in made:
                path.rmdir()


def link(repo: str, directory: Path) -> Path:
    """Let the repository's name lead to `directory`, unless that is taken. Returns where it leads to."""
    known = place(repo)
    if known.is_symlink():
        known.unlink()
    if not known.exists():
        known.parent.mkdir(parents=True, exist_ok=True)
        known.symlink_to(directory.absolute(), target_is_directory=True)
    return known.resolve()

"""`ftagent convert`: a safetensors directory as FTW, or a check of one that is FTW."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ftagent.commands.common import emit, errors_as_events, json_flag, log_to_stderr, narrate
from ftagent.commands.progress import ProgressLine, size_text
from ftagent.errors import ConfigError
from ftagent.hub.store import model_path
from ftagent.settings import parse_size


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="SRC")
@click.argument("target", type=click.Path(path_type=Path), metavar="DST", required=False)
@click.option("--check", is_flag=True, help="Read all of SRC, which is FTW, and hold it against its digests.")
@click.option("--restart", is_flag=True, help="Begin anew where an earlier conversion to DST was ended.")
@click.option("--shard-size", metavar="SIZE", help="Largest part of the weights in one file (4000MiB).")
@json_flag
def command(
    source: Path, target: Path | None, check: bool, restart: bool, shard_size: str | None, as_json: bool
) -> None:
    """Convert the model in SRC (safetensors) to FTW, the format that loads fastest, in the directory DST.

    SRC may be the name of a repository that was pulled. Weights keep their precision: DST serves every
    device. It holds config and tokenizer too. If the command is ended, the same command goes on where it
    stopped. What was written is read back and checked.
    """
    log_to_stderr()
    with errors_as_events(as_json):
        line = ProgressLine()
        try:
            if check:
                if target is not None or restart or shard_size:
                    raise ConfigError("--check takes one directory and no other flag")
                _check(source, line, as_json)
            elif target is None:
                raise ConfigError("give the directory to write to: ftagent convert SRC DST")
            else:
                _convert(source, target, shard_size, restart, line, as_json)
        finally:
            line.close()


def _convert(
    source: Path, target: Path, shard_size: str | None, restart: bool, line: ProgressLine, as_json: bool
) -> None:
    from ftagent.engine.convert import SHARD_BYTES, convert

    try:
        shard = SHARD_BYTES if shard_size is None else parse_size(shard_size)
    except ValueError as error:
        raise ConfigError(f"--shard-size: {error}") from error
    source = Path(model_path(str(source)))
    try:
        done = convert(source, target, shard_bytes=shard, restart=restart, progress=line.update)
    except KeyboardInterrupt:
        line.close()
        narrate("interrupted; the same command goes on where it stopped")
        raise
    line.close()
    resumed = f" ({size_text(done.resumed_bytes)} of it earlier)" if done.resumed_bytes else ""
    narrate(
        f"converted {source} to {target}: {done.tensors} tensors, {size_text(done.bytes)}{resumed}, "
        f"{done.shards} files, {done.seconds:.1f} s; all of it read back and checked"
    )
    if as_json:
        emit(
            {
                "type": "converted",
                "directory": str(done.directory),
                "set": done.set,
                "shards": done.shards,
                "tensors": done.tensors,
                "banks": done.banks,
                "bytes": done.bytes,
                "resumed_bytes": done.resumed_bytes,
                "seconds": round(done.seconds, 3),
            }
        )


def _check(directory: Path, line: ProgressLine, as_json: bool) -> None:
    from ftagent.engine.convert import check

    began = time.monotonic()
    found = check(directory, progress=line.update)
    line.close()
    seconds = time.monotonic() - began
    words = f"{len(found.tensors)} tensors, {size_text(found.bytes)}"
    narrate(f"{directory}: {words}, all as they were written")
    if as_json:
        emit(
            {
                "type": "checked",
                "directory": str(directory),
                "set": found.digest,
                "shards": len(found.shards),
                "tensors": len(found.tensors),
                "bytes": found.bytes,
                "seconds": round(seconds, 3),
            }
        )

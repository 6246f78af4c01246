"""`ftagent pull`: a model from the Hugging Face hub, ready to be loaded."""

from __future__ import annotations

from pathlib import Path

import click

from ftagent.commands.common import emit, errors_as_events, json_flag, log_to_stderr, narrate
from ftagent.commands.progress import ProgressLine, size_text


@click.command()
@click.argument("repo", metavar="REPO")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit. Unset: as before; at first, main.")
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="DIR", help="Where to put it.")
@click.option("--force", is_flag=True, help="Pull a model that the engine would refuse to load, too.")
@json_flag
def command(repo: str, revision: str | None, target: Path | None, force: bool, as_json: bool) -> None:
    """Fetch the model REPO (OWNER/NAME) from the Hugging Face hub; stdout says the directory.

    Then `--model REPO` loads it. Only what the engine reads is fetched: config, tokenizer, chat template,
    safetensors or FTW. Family and disk space are checked before, sizes and hashes of all files after. If the
    command is ended, the same command goes on where it stopped; later it brings what has changed.

    The hub's own variables hold: HF_TOKEN (or `hf auth login`), HF_ENDPOINT, HF_HUB_OFFLINE.
    """
    log_to_stderr()
    with errors_as_events(as_json):
        from ftagent.hub.pull import Order, pull

        line = ProgressLine()
        try:
            done = pull(Order(repo, revision, target, force), line.update, narrate)
        except KeyboardInterrupt:
            line.close()
            narrate("interrupted; the same command goes on where it stopped")
            raise
        finally:
            line.close()
    model = repo if done.linked else str(done.directory)
    narrate(
        f"{repo} at {done.commit}: {done.files} files, {size_text(done.bytes)}, {size_text(done.fetched)} "
        f"of it fetched now, {done.seconds:.1f} s; hashes checked; load it with --model {model}"
    )
    if not as_json:
        click.echo(str(done.directory))
        return
    emit(
        {
            "type": "pulled",
            "repo": repo,
            "revision": done.revision,
            "commit": done.commit,
            "directory": str(done.directory),
            "files": done.files,
            "bytes": done.bytes,
            "fetched_bytes": done.fetched,
            "seconds": round(done.seconds, 3),
        }
    )

"""The `ftagent` command: finds the subcommand, turns errors into one line and an exit code.

Imports neither torch nor Textual nor pydantic: a subcommand's module is loaded when it is called.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ftagent import __version__
from ftagent.errors import FtError

# name: (module, line in --help). The order is the order shown.
COMMANDS = {
    "chat": ("ftagent.commands.chat", "Talk to the model: a screen, or one answer with -p."),
    "run": ("ftagent.commands.run", "Run a coding agent on the model."),
    "serve": ("ftagent.commands.serve", "Serve the model over HTTP: Anthropic and OpenAI protocols."),
    "pull": ("ftagent.commands.pull", "Fetch a model from the Hugging Face hub."),
    "plan": ("ftagent.commands.plan", "Show whether a model fits, and how fast it would be."),
    "convert": ("ftagent.commands.convert", "Convert a model to FTW, the format that loads fastest."),
    "top": ("ftagent.commands.top", "Show what a running engine does."),
    "statusline": ("ftagent.commands.statusline", "The same in one line, for status lines of others."),
    "doctor": ("ftagent.commands.doctor", "Check what this machine can do."),
    "bench": ("ftagent.commands.bench", "Measure bandwidths, decode and prefill speed."),
    "config": ("ftagent.commands.config", "Show and check the settings."),
}

EPILOG = """\b
Exit codes:
  0 done                             1 the task failed
  2 usage or configuration           3 engine not reachable, or failed to load
  124 --timeout passed               125 the wrapper could not run the agent
  126 agent not executable           127 agent not found
  128+n ended by signal n            run: else the agent's own code

stdout is data, stderr is narration. --debug or FTAGENT_DEBUG=1 shows tracebacks."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ftagent", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Mixture-of-experts models on this machine, for the coding agents you already use."""
    if debug:
        os.environ["FTAGENT_DEBUG"] = "1"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. Exit codes as in `EPILOG` and `ftagent.errors`."""
    _mend_streams()
    try:
        # Not cli.main(): that turns a broken pipe into exit code 1.
        with cli.make_context("ftagent", list(sys.argv[1:] if arguments is None else arguments)) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as error:  # --help and --version
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the whole help
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        hint = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        _fail(error.format_message().rstrip(".") + hint, 2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except FtError as error:
        _fail(str(error), error.exit_code, error)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout has gone, as `| head` does: nothing left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a full disk, mostly; errors that a command expects are FtErrors by now
        _fail(f"{error.filename or 'output'}: {error.strerror or error}; --debug shows where", 1, error)
    except Exception as error:  # noqa: BLE001  # the last line of defence: a defect must not print a traceback
        _fail(f"internal error: {type(error).__name__}: {error}; --debug shows where", 1, error)
    sys.exit(code if isinstance(code, int) else 0)


def _mend_streams() -> None:
    """Open what the caller closed (`>&-`), and let a narrow encoding cost characters, not the answer."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
        elif isinstance(stream, io.TextIOWrapper) and number and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _fail(message: str, code: int, error: BaseException | None = None) -> NoReturn:
    if error is not None and os.environ.get("FTAGENT_DEBUG"):
        traceback.print_exception(error)
    click.echo("ftagent: " + " ".join(message.split()), err=True)
    sys.exit(code)

"""`ftagent serve`: the engine behind the gateway until a signal ends it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import click

from ftagent.commands.common import (
    ENGINE_FLAGS,
    StopSignal,
    emit,
    errors_as_events,
    json_flag,
    load_settings,
    log_to_stderr,
    narrate,
    open_engine,
    setting_flags,
)
from ftagent.engine.api import ModelInfo
from ftagent.errors import ConfigError, EngineStopped
from ftagent.settings import Settings

if TYPE_CHECKING:
    from ftagent.gateway.server import Gateway


@click.command()
@setting_flags(ENGINE_FLAGS)
@setting_flags({"host": "ADDRESS", "port": "N", "token": "TEXT"})
@click.option("--allow-remote", is_flag=True, help="Let --host be other than the loopback; needs --token.")
@json_flag
def command(allow_remote: bool, as_json: bool, **flags: Any) -> None:
    """Serve the model over HTTP: Anthropic messages, OpenAI chat and completions.

    The first line on stdout says that it is ready, where, and the token to present. SIGINT or SIGTERM ends it
    cleanly with exit code 0.
    """
    log_to_stderr()
    with errors_as_events(as_json):
        settings = load_settings(flags).values
        check_address(settings, allow_remote)
        from ftagent.engine.starting import StartingEngine
        from ftagent.gateway.announce import announce
        from ftagent.gateway.server import start_gateway

        starting = StartingEngine()  # /health says how far loading is
        with (
            start_gateway(starting, settings.host, settings.port, settings.token) as gateway,
            open_engine(settings, progress=starting.tell) as engine,
            gateway,  # which ends before the engine does
            announce(gateway.url, gateway.token, engine.model.id),
        ):
            starting.ready(engine)
            stop = StopSignal()
            _announce(gateway, engine.model, as_json)
            asked = stop.wait(lambda: engine.health == "ok")
            narrate("stopping")
        if not asked:
            raise EngineStopped("the engine stopped while serving; the lines above say why")


def _announce(gateway: Gateway, model: ModelInfo, as_json: bool) -> None:
    if as_json:
        ready = {"url": gateway.url, "token": gateway.token, "model": model.id, "context": model.context}
        emit({"type": "ready", **ready})
    else:
        click.echo(f"{gateway.url} token {gateway.token}")
    narrate("serving; Ctrl+C ends it")


def check_address(settings: Settings, allow_remote: bool) -> None:
    """Refuse an address that must not or cannot be listened on, before a model is loaded for it.

    Raises ConfigError.
    """
    from ftagent.gateway.security import is_loopback

    host = settings.host
    if host in ("0.0.0.0", "::"):
        raise ConfigError(f"--host {host} is every address; name the one that clients will use")
    if not is_loopback(host) and not (allow_remote and settings.token):
        raise ConfigError(
            f"--host {host} can be reached from other machines; add --allow-remote and --token TEXT"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "choose another with --port, or --port 0 for a free one"
        ) from error

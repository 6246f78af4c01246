"""The gateway as a running server: uvicorn in a thread of its own, on a socket that is bound first.

Binding before starting gives port 0 its number and a taken port its one-line error.
"""

from __future__ import annotations

import secrets
import socket
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI

from ftagent.engine.api import Engine
from ftagent.errors import ConfigError, EngineError
from ftagent.gateway.app import create_app
from ftagent.gateway.body import BODY_LIMIT
from ftagent.gateway.reply import Timing
from ftagent.gateway.security import is_loopback

_START_TIMEOUT_S = 30.0
_GRACE_S = 1  # how long open replies may go on after close()
_IDLE_CONNECTION_S = 120  # longer than agents pause between turns, so that they do not meet a closing socket


class _Server(uvicorn.Server):
    """Ends open replies in their own protocol before connections are closed."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._gateway_app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway_app.state.close()
        await super().shutdown(sockets)


class Gateway:
    """A server in front of one engine. Closing it leaves the engine to its owner."""

    def __init__(self, server: uvicorn.Server, listener: socket.socket, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._server = server
        self.listener = listener
        self._thread = threading.Thread(
            target=server.run, args=([listener],), name="ftagent-gateway", daemon=True
        )

    def start(self) -> None:
        """Begin to serve; returns when connections are accepted. Raises EngineError if that fails."""
        self._thread.start()
        waiting = threading.Event()
        for _ in range(int(_START_TIMEOUT_S / 0.01)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            waiting.wait(0.01)
        self.close()
        raise EngineError(f"the gateway could not start on {self.url}: see the log")

    def close(self) -> None:
        """Stop serving. Open replies end with an error, within about a second. Safe to call twice."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self.listener.close()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def start_gateway(
    engine: Engine,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    timing: Timing | None = None,
    *,
    body_limit: int = BODY_LIMIT,
    open_access: bool = False,
) -> Gateway:
    """Serve `engine` on `host`:`port` (0 picks a free port). A token is made when none is given.

    `open_access` serves without any token, which is allowed on loopback only. Raises ConfigError when the
    address cannot be used.
    """
    if open_access and not is_loopback(host):
        raise ConfigError(f"a gateway without a token must listen on loopback, not on {host}")
    used = None if open_access else token or secrets.token_urlsafe(24)
    listener = _bind(host, port)
    bound = listener.getsockname()[1]
    app = create_app(engine, token=used, timing=timing, body_limit=body_limit, hosts=_names(host))
    options: dict[str, Any] = {"loop": "asyncio", "http": "h11", "ws": "none", "lifespan": "off"}
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=_GRACE_S,
        **options,
    )
    gateway = Gateway(_Server(config, app), listener, f"http://{_reachable(host)}:{bound}", used)
    gateway.start()
    return gateway


_EVERYWHERE = ("0.0.0.0", "::")


def _names(host: str) -> tuple[str, ...]:
    """What a Host header may say besides loopback names."""
    if host in _EVERYWHERE:
        return ("*", socket.gethostname())
    return () if is_loopback(host) else (host,)


def _reachable(host: str) -> str:
    """`host` as clients on this machine put it in a URL."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{here}]" if ":" in here else here


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another port"
        ) from None
    return listener

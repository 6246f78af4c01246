"""Who may talk to the gateway: the token of the run, loopback names only, no foreign web page.

An ASGI layer in front of all routes. Knows no protocol beyond the shape of its errors, and logs nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ftagent.gateway.errors import Refused, error_body, fault_of, protocol_of

# Probes of agents and monitors, which carry no token. They tell nothing about the model or its user.
_OPEN_PATHS = frozenset({"/", "/health", "/api/hello"})


class Guard:
    """Refuses requests before any route sees them: 403 for a strange Host or Origin, 401 without the token.

    The Host check stops DNS rebinding: a page whose name resolves to 127.0.0.1 still sends its own name.
    `hosts` are names accepted besides loopback ones, for a gateway that listens elsewhere; "*" stands for any
    literal address, which no foreign page can rebind.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(name.lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refusal(scope, headers)
        if refused is None:
            await self._app(scope, receive, send)
            return
        protocol = protocol_of(scope["path"], headers)
        fault = fault_of(refused, protocol)
        response = JSONResponse(error_body(fault, protocol), fault.status)
        if fault.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Refused | None:
        server = scope.get("server")
        port = server[1] if server else None
        if not self._is_here("http://" + headers.get("host", ""), port):
            return Refused(
                403, "the Host header does not name this machine's loopback address and port", "host"
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_here(origin, port):
            return Refused(403, "requests of other web pages are refused")
        if self._token is None or scope["path"] in _OPEN_PATHS:
            return None
        if any(_same(sent, self._token) for sent in _sent_tokens(headers)):
            return None
        return Refused(401, "the token of this run is missing or wrong: send it as x-api-key or Bearer")

    def _is_here(self, url: str, port: int | None) -> bool:
        try:
            parts = urlsplit(url)
            name, given = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        plain = not (parts.username or parts.path or parts.query or parts.fragment) and parts.scheme == "http"
        return plain and given == port and self._is_known(name)

    def _is_known(self, name: str) -> bool:
        if is_loopback(name) or name in self._hosts:
            return True
        return "*" in self._hosts and _address(name) is not None


def is_loopback(name: str) -> bool:
    """Whether `name`, a host name or an address without brackets, is this machine to itself."""
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _sent_tokens(headers: Headers) -> list[str]:
    kind, _, value = headers.get("authorization", "").partition(" ")
    bearer = [value.strip()] if kind.lower() == "bearer" else []
    return [*bearer, *headers.getlist("x-api-key")]


def _same(sent: str, token: str) -> bool:
    # Constant time, so that the answer's delay says nothing about how much of a guess is right.
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode())

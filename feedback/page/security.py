"""Checks of every request and headers of every HTTP response, as plain ASGI.

A page on another site can make a browser send requests to 127.0.0.1, and can point its own host
name at that address: hence the checks of Host, Origin and CSRF token (`feedback.page.access`).
"""

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 65_536
"""The largest request body; a reason has at most 2,000 characters."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_LENGTH = re.compile("[0-9]{1,19}")
_SAFE_METHODS = frozenset({"GET", "HEAD"})


class TooLargeError(Exception):
    """A body exceeded the limit while it was read."""


class Guard:
    """Refuses wrong hosts, foreign origins and large bodies; adds the security headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """`hosts`: accepted host names, without port."""
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request; of other scopes, lifespan is passed on and the rest closed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, _capped(receive), send_guarded)
        except TooLargeError:
            await _too_large()(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None:
            return PlainTextResponse("expected one Host, a name or an address", status_code=400)
        if named["name"].strip("[]").lower() not in self._hosts:
            return PlainTextResponse("this host is not served here", status_code=421)
        if headers.get("upgrade", "").strip().lower() == "websocket":
            return PlainTextResponse("there are no WebSockets here", status_code=400)
        origin = headers.get("origin")
        if method not in _SAFE_METHODS and origin is not None and not _is_of(origin, hosts[0]):
            return PlainTextResponse("requests from other sites are refused", status_code=403)
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > MAX_BODY_BYTES:
            return _too_large()
        return None


def _is_of(origin: str, host: str) -> bool:
    """Whether a page of this origin was served under this host."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _too_large() -> PlainTextResponse:
    return PlainTextResponse(f"larger than {MAX_BODY_BYTES} bytes", status_code=413)


def _capped(receive: Receive) -> Receive:
    """`receive` with a byte limit, which also stops requests without or with a false length."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise TooLargeError
        return message

    return counted

"""Checks of every request and headers of every HTTP response, as plain ASGI.

A page on another site can make a browser send requests to 127.0.0.1, and can point its own host
name at that address: hence the checks of Host, Origin and CSRF token (`feedback.page.access`).
"""

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feedback.page.proxies import Proxies, ProxyError

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


PUBLISH_PATH = "/api/lead/publish"
MAX_PUBLISHED_BYTES = 16 * 2**20
"""The largest file of pairs that a lead may publish by the page."""


class TooLargeError(HTTPException):
    """A body exceeded the limit while it was read; FastAPI makes 400 of other exceptions."""

    def __init__(self, limit: int) -> None:
        """`limit`: the most bytes that a body may have."""
        super().__init__(413, too_large(limit))


def too_large(limit: int) -> str:
    """What a body that has more bytes than this is answered with."""
    published = limit == MAX_PUBLISHED_BYTES
    way = "; python -m feedback publish takes larger files" if published else ""
    return f"larger than {limit} bytes{way}"


class Guard:
    """Refuses wrong hosts, foreign origins and large bodies; adds the security headers.

    Behind a proxy, the request has its client's address and scheme from here on, and in its state
    the name of whom the proxy has signed in (`signed_in_by_proxy`).
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], proxies: Proxies) -> None:
        """`hosts`: accepted host names, without port."""
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)
        self._proxies = proxies

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

        headers = Headers(scope=scope)
        limit = MAX_PUBLISHED_BYTES if scope["path"] == PUBLISH_PATH else MAX_BODY_BYTES
        refusal = self._forwarded(scope, headers) or self._refusal(scope["method"], headers, limit)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, _capped(receive, limit), send_guarded)

    def _forwarded(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        peer, port = scope.get("client") or ("nowhere", 0)
        try:
            scope["client"] = (self._proxies.client(peer, headers), port)
            name = self._proxies.signed_in(headers)
        except ProxyError as error:
            return PlainTextResponse(error.text, status_code=error.status)
        if self._proxies:
            scope["scheme"] = "https"
        scope["state"] = {**scope.get("state", {}), "signed_in_by_proxy": name}
        return None

    def _refusal(self, method: str, headers: Headers, limit: int) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None:
            return PlainTextResponse("expected one Host, a name or an address", status_code=400)
        if named["name"].strip("[]").lower() not in self._hosts:
            return PlainTextResponse("this host is not served here", status_code=421)
        if headers.get("upgrade", "").strip().lower() == "websocket":
            return PlainTextResponse("there are no WebSockets here", status_code=400)
        origin = headers.get("origin")
        schemes = ("https",) if self._proxies else ("http", "https")
        ours = origin is None or _is_of(origin, hosts[0], schemes)
        if method not in _SAFE_METHODS and not ours:
            return PlainTextResponse("requests from other sites are refused", status_code=403)
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > limit:
            return PlainTextResponse(too_large(limit), status_code=413)
        return None


def _is_of(origin: str, host: str, schemes: Collection[str]) -> bool:
    """Whether a page of this origin was served under this host."""
    try:
        parts = urlsplit(origin)
        return parts.netloc == host and parts.scheme in schemes
    except ValueError:
        return False


def _capped(receive: Receive, limit: int) -> Receive:
    """`receive` with a byte limit, which also stops requests without or with a false length."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLargeError(limit)
        return message

    return counted

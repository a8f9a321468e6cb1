"""What every request to Prefect and MLflow passes, as plain ASGI.

A page on another site can make a browser send requests to 127.0.0.1, and can give its own name that
address: hence the checks of Host, of Origin and of what the browser says of the page.
"""

import base64
import hashlib
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.access import SIGN_IN

_HEADERS = {
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
_STRANGERS = {"cross-site", "same-site"}
"""`same-site` too: to a browser, every port of this machine is the same site."""

# The key is the one under which both of Prefect's UIs keep the password.
_SCRIPT = (
    """
const password = decodeURIComponent(location.hash.slice(1));
if (password) localStorage.setItem("prefect-password", btoa(password));
location.replace(location.origin + (location.pathname.slice("%s".length) || "/"));
""".strip()
    % SIGN_IN
)
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()


class Guard:
    """Lets through what a page of this very server, or no page at all, asks for."""

    def __init__(
        self, app: ASGIApp, addresses: Collection[str], *, policy: str | None = None
    ) -> None:
        """`addresses`: each host with its port by which the server may be called.

        `policy`: the Content-Security-Policy of pages that have none of their own.
        """
        self._app, self._policy = app, policy
        self._hosts = {address.lower() for address in addresses}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        if scope["type"] == "websocket":
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if self._policy is not None:
                    headers.setdefault("Content-Security-Policy", self._policy)
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        hosts = [host.lower() for host in headers.getlist("host")]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return PlainTextResponse("this host is not served here", status_code=421)
        foreign = any(origin not in self._origins for origin in headers.getlist("origin"))
        # A link on another page may lead here; nothing else of it may.
        embedded = (
            headers.get("sec-fetch-site") in _STRANGERS
            and headers.get("sec-fetch-dest") != "document"
            and "origin" not in headers
        )
        if foreign or embedded:
            return PlainTextResponse("requests from other sites are refused", status_code=403)
        return None


def asks_only(addresses: Collection[str]) -> str:
    """The policy of pages that fetch from, and run code of, these addresses alone.

    Prefect's page asks Amplitude, a service that counts users, for its settings at each visit,
    whatever the server's settings say of telemetry.
    """
    here = " ".join(f"{scheme}://{one}" for one in addresses for scheme in ("http", "ws"))
    inline = "'unsafe-inline' 'unsafe-eval'"
    return f"connect-src 'self' data: blob: {here}; script-src 'self' blob: {inline}"


def with_sign_in(app: ASGIApp) -> ASGIApp:
    """`app`, and a page that takes the password from behind the `#` of its address."""
    page = HTMLResponse(
        f"<!doctype html><title>Signing in</title><script>{_SCRIPT}</script>",
        headers={
            "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'",
            "Cache-Control": "no-store",
        },
    )

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{SIGN_IN}/")
        await (page if ours else app)(scope, receive, send)

    return serve


def without(app: ASGIApp, path: str) -> ASGIApp:
    """`app`, as if it had nothing at this path and below."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        hidden = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{path}/")
        await (PlainTextResponse("not served here", 404) if hidden else app)(scope, receive, send)

    return serve

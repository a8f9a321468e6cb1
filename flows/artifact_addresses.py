"""Artifacts of a store on this disk, named by MLflow's server so that other machines reach them.

Stages on this machine write to the store without a server, so it holds the addresses of folders
here (`file:`). On another machine a client would look for such a folder on its own disk, and write
models there. MLflow's server also hands these files on (`mlflow-artifacts:`): its answers name
that address instead, and what it is asked is translated back before it is stored.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BY_SERVER = "mlflow-artifacts:"


class ByServer:
    """MLflow's server, to whose clients no folder of this machine is named."""

    def __init__(self, app: ASGIApp, folder: str) -> None:
        """`folder`: address of the artifacts, such as file:///home/ada/rounds/artifacts."""
        self._app = app
        self._folder = folder.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; only JSON is read, and artifacts pass as they are."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _is_json(Headers(scope=scope)):
            scope, receive = await self._stored(scope, receive)
        start: Message | None = None
        body = b""

        async def named(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_json(Headers(scope=message)):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    text = self._named(body)
                    MutableHeaders(scope=start)["content-length"] = str(len(text))
                    await send(start)
                    await send({"type": "http.response.body", "body": text})

        await self._app(scope, receive, named)

    async def _stored(self, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
        """A request with addresses as the store has them."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return scope, receive
            body += message.get("body", b"")
            more = message.get("more_body", False)
        text = body.replace(f'"{BY_SERVER}/'.encode(), b'"' + self._folder + b"/")
        scope = {**scope, "headers": list(scope["headers"])}
        MutableHeaders(scope=scope)["content-length"] = str(len(text))
        unread = [{"type": "http.request", "body": text, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        return scope, again

    def _named(self, body: bytes) -> bytes:
        """A response with addresses as clients are to have them."""
        here, by_server = b'"' + self._folder, f'"{BY_SERVER}/'.encode()
        return body.replace(here + b"/", by_server).replace(here + b'"', by_server + b'"')


def _is_json(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip() == "application/json"

"""An endpoint of a language model that judges, in a thread of its own."""

import contextlib
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[str, str], tuple[int, str]]

CUT_OFF = 298
"""A reply of 200 whose connection is lost in the middle of its body."""

DRIBBLE = 297
"""A reply of 200 whose bytes come one at a time, a tenth of a second apart."""


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint whose model is a function of the two shown answers."""

    def __init__(self) -> None:
        self.reply: Reply = lambda first, _: (200, "1" if "good" in first else "2")
        self.asked: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        self.server.asked.append(body | {"key": self.headers["Authorization"]})
        text = body["messages"][0]["content"]
        first = text.split("<answer_1>")[1].split("</answer_1>")[0].strip()
        second = text.split("<answer_2>")[1].split("</answer_2>")[0].strip()
        code, word = self.server.reply(first, second)
        content = word
        if code == 200:
            content = json.dumps({"choices": [{"message": {"content": word}}]})
        self.send_response(200 if code in (CUT_OFF, DRIBBLE, 299) else code)
        for header in self.server.headers.items():
            self.send_header(*header)
        if code == CUT_OFF:
            self.send_header("Content-Length", "1000")
        self.end_headers()
        if code == DRIBBLE:
            content = " ".join(content)
            with contextlib.suppress(OSError):
                for byte in content.encode():
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.1)
            return
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""

"""Requests in JSON over HTTP, tried again where the server is busy, ails or cannot be reached."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

WAITS_S: tuple[float, ...] = (1, 2, 4, 8, 16, 32)
"""Seconds before each further try: over a minute in all, the usual window of a rate limit."""
LONGEST_WAIT_S = 60.0
"""A server that asks for a longer wait is asked again after this one."""

_LONGEST_REPLY = 1 << 22
"""Bytes of a reply that are read; a verdict is a few bytes long, the reasoning beside it a book."""
_SHOWN = 300
"""Bytes of a refusal that people are shown."""
_OF_THE_SERVER = frozenset({401, 402, 404, 407})
"""Statuses that every request would get: no key, no credit, no such model, a proxy's password."""
_TOO_MANY = 429


class ReplyError(Exception):
    """The server refused this request, or its reply is not JSON."""

    def __init__(self, message: str, *, words: str = "") -> None:
        """`words` of the server's own, in one line; other ones each time, such as an id."""
        super().__init__(message)
        self.words = words


class UnansweredError(Exception):
    """The server answers no request, or did not answer this one after all tries."""


class _TransientError(Exception):
    """One try failed; another one may succeed."""

    def __init__(self, message: str, *, code: int = 0, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after


class Endpoint:
    """Sends requests, from any number of threads; where one gives up, all do."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """`timeout_s`: seconds per try."""
        self._url, self._timeout_s = url, timeout_s
        self._opener = opener_for(url)
        self._answered = 0
        self._given_up = threading.Event()
        self._why = ""

    def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The JSON of the reply.

        Raises:
            ReplyError: this request was refused, or the reply is not JSON.
            UnansweredError: the last try failed too, or another thread has given up.
        """
        request = urllib.request.Request(
            self._url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        for name, value in headers.items():
            # Where the server sends us elsewhere, a key does not go along.
            request.add_unredirected_header(name, value)
        tries, answered = 0, self._answered
        while not self._given_up.is_set():
            try:
                reply = self._once(request)
            except UnansweredError as error:
                self.give_up(str(error))
            except _TransientError as error:
                # A rate limit that lets others through is no reason to give up.
                if error.code == _TOO_MANY and self._answered != answered:
                    tries, answered = 0, self._answered
                if tries == len(WAITS_S):
                    self.give_up(f"{error} ({tries + 1} tries)")
                else:
                    self._given_up.wait(wait_of(WAITS_S[tries], error.retry_after))
                    tries += 1
            else:
                self._answered += 1
                return reply
        raise UnansweredError(self._why)

    def give_up(self, why: str) -> None:
        """Lets nobody try again, nor wait to."""
        self._why = why
        self._given_up.set()

    def _once(self, request: urllib.request.Request) -> Any:
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                content = _read(answer, time.monotonic() + self._timeout_s)
                if answer.length and len(content) < _LONGEST_REPLY:
                    raise http.client.IncompleteRead(content, answer.length)
                if len(content) == _LONGEST_REPLY:
                    said = f"the endpoint's reply has {_LONGEST_REPLY:,} bytes or more"
                    raise ReplyError(said)
                return json.loads(content)
        except urllib.error.HTTPError as error:
            said = f"the endpoint answered {error.code}"
            if error.code in _OF_THE_SERVER:
                raise UnansweredError(said) from error
            if error.code in (408, _TOO_MANY) or error.code >= 500:
                again = error.headers.get("Retry-After")
                raise _TransientError(said, code=error.code, retry_after=again) from error
            raise ReplyError(said, words=_words(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise _TransientError(f"the endpoint cannot be reached: {error}") from error
        except ValueError as error:
            raise ReplyError("the endpoint's reply is not JSON") from error


def _words(refusal: urllib.error.HTTPError) -> str:
    """What a server says of its refusal; nothing where that does not arrive."""
    try:
        return " ".join(refusal.read(_SHOWN).decode(errors="replace").split())
    except (OSError, http.client.HTTPException):
        return ""


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """A reply, or as much of it as is looked at; its bytes may come one at a time.

    Raises:
        TimeoutError: it goes on after `deadline`, in seconds of the monotonic clock.
    """
    content = b""
    while piece := answer.read1(_LONGEST_REPLY - len(content)):
        content += piece
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return content


def wait_of(planned: float, retry_after: str | None) -> float:
    """Seconds to wait: `planned`, or longer if the header Retry-After says so, within bounds."""
    if retry_after is None:
        return planned
    try:
        asked = float(retry_after)
    except ValueError:
        try:
            until = parsedate_to_datetime(retry_after)
        except ValueError:
            return planned
        asked = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    # In this order, NaN gives the planned wait.
    return min(max(planned, asked), LONGEST_WAIT_S)


def opener_for(url: str) -> urllib.request.OpenerDirector:
    """Opens the address, without the user's proxy between two processes on one machine."""
    here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))

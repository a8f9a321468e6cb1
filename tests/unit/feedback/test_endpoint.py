"""An endpoint that is busy, ails or is away is asked again, and is not taken for a refusal."""

import itertools
import os
import signal
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from feedback import endpoint as requests
from feedback.endpoint import UnansweredError, wait_of
from tests.unit.feedback.model_endpoint import CUT_OFF, DRIBBLE, Endpoint
from tests.waiting import eventually


class Elsewhere(BaseHTTPRequestHandler):
    """To whom an endpoint leads."""

    keys: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        self.send_error(400)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tries, without waits."""
    monkeypatch.setattr(requests, "WAITS_S", (0, 0))


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504, CUT_OFF])
@pytest.mark.usefixtures("hasty")
def test_what_fails_for_a_while_is_asked_again(
    ask: Any, endpoint: Endpoint, pairs: Any, code: int
) -> None:
    works, failures = endpoint.reply, iter([(code, "busy")] * 2)
    endpoint.reply = lambda *shown: next(failures, None) or works(*shown)
    assert [one.choice for one in ask(at_once=1).judge(pairs)] == ["a", "b"]
    assert len(endpoint.asked) == 6


@pytest.mark.parametrize("code", [429, 503, CUT_OFF])
@pytest.mark.usefixtures("hasty")
def test_an_endpoint_that_goes_on_failing_gives_no_skips_and_keeps_what_was_answered(
    ask: Any, endpoint: Endpoint, pairs: Any, code: int
) -> None:
    works = endpoint.reply
    endpoint.reply = lambda *shown: works(*shown) if "good one" in shown else (code, "busy")
    with pytest.raises(UnansweredError, match=r"the endpoint .* \(3 tries\)"):
        ask(at_once=1).judge(pairs)
    assert len(endpoint.asked) == 2 + 3
    endpoint.reply = works
    assert [one.choice for one in ask().judge(pairs)] == ["a", "b"]
    assert len(endpoint.asked) == 2 + 3 + 2


def test_what_no_request_would_get_past_is_not_tried_again(
    ask: Any, endpoint: Endpoint, make_pairs: Any
) -> None:
    endpoint.reply = lambda *_: (401, "whose key is this?")
    with pytest.raises(UnansweredError, match="the endpoint answered 401"):
        ask(at_once=1).judge(make_pairs(5))
    assert len(endpoint.asked) == 1


def test_a_rate_limit_that_lets_others_through_costs_no_tries(
    ask: Any, endpoint: Endpoint, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WAITS_S", (0, 0))
    limited, *others = make_pairs(16)
    answered: list[str] = []

    def reply(first: str, second: str) -> tuple[int, str]:
        if limited.response_a in (first, second):
            # The answer to one of the next two has arrived when the last one is asked for.
            enough = min(len(answered) + 2, 30)
            eventually(lambda: len(answered) >= enough)
            return (200, "tie") if len(answered) == 30 else (429, "slow down")
        answered.append(first)
        time.sleep(0.03)
        return 200, "tie"

    endpoint.reply = reply
    assert {one.choice for one in ask(at_once=2).judge([limited, *others])} == {"tie"}


@pytest.mark.usefixtures("hasty")
def test_the_wait_that_the_endpoint_asks_for_is_kept(
    ask: Any, endpoint: Endpoint, pairs: Any
) -> None:
    works, failures = endpoint.reply, iter([(429, "slow down")])
    endpoint.reply = lambda *shown: next(failures, None) or works(*shown)
    endpoint.headers = {"Retry-After": "0.5"}
    start = time.monotonic()
    ask(at_once=1).judge(pairs[:1])
    assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        (None, 2),
        ("0", 2),
        ("7", 7),
        ("86400", 60),
        ("soon", 2),
        ("nan", 2),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 2),
        ("Wed, 21 Oct 2215 07:28:00 GMT", 60),
    ],
)
def test_a_wait_is_the_longer_one_within_a_minute(header: str | None, wait: float) -> None:
    assert wait_of(2, header) == wait


@pytest.mark.usefixtures("hasty")
def test_an_endpoint_that_is_not_there_gives_no_judgments(
    ask: Any, endpoint: Endpoint, pairs: Any
) -> None:
    with pytest.raises(UnansweredError, match=r"the endpoint cannot be reached: .* refused"):
        ask(endpoint="http://127.0.0.1:9/v1").judge(pairs)
    assert endpoint.asked == []


def test_an_endpoint_on_this_machine_is_not_asked_through_the_proxy(
    ask: Any, pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(requests, "WAITS_S", ())
    assert [one.choice for one in ask().judge(pairs)] == ["a", "b"]


@pytest.mark.usefixtures("hasty")
def test_a_reply_that_comes_a_byte_at_a_time_has_no_longer_than_the_timeout(
    ask: Any, endpoint: Endpoint, make_pairs: Any
) -> None:
    endpoint.reply = lambda *_: (DRIBBLE, "1" * 100)
    with pytest.raises(UnansweredError, match=r"timed out \(3 tries\)"):
        ask(at_once=1, timeout_s=0.3).judge(make_pairs(1))


def test_an_interrupted_annotator_waits_for_no_further_try(
    ask: Any, endpoint: Endpoint, make_pairs: Any
) -> None:
    numbers = itertools.count(1)

    def reply(*_: str) -> tuple[int, str]:
        if next(numbers) == 2 * 4:
            os.kill(os.getpid(), signal.SIGINT)
        return 503, "busy"

    endpoint.reply = reply
    with pytest.raises(KeyboardInterrupt):
        ask(at_once=4).judge(make_pairs(20))
    # Each of four would have tried seven times, for a minute.
    assert len(endpoint.asked) < 7 * 4


def test_the_key_does_not_follow_where_an_endpoint_leads(
    ask: Any, endpoint: Endpoint, pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "sk-secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        Thread(target=elsewhere.serve_forever, args=(0.01,), daemon=True).start()
        endpoint.headers = {"Location": f"http://127.0.0.1:{elsewhere.server_port}/"}
        endpoint.reply = lambda *_: (302, "")
        ask(at_once=1, api_key_variable="A_KEY").judge(pairs[:1])
        elsewhere.shutdown()

    assert {one["key"] for one in endpoint.asked} == {"Bearer sk-secret"}
    assert Elsewhere.keys
    assert set(Elsewhere.keys) == {None}

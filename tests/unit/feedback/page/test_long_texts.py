"""Texts that are long, or slow to show: what of them is sent, and whom they keep waiting."""

import threading
import time
from dataclasses import replace
from typing import Any

from fastapi.testclient import TestClient

from feedback.page.rendering import SHOWN_CHARACTERS
from feedback.page.server import ServerParams, create_app
from preferences.records import pair_id
from tests.unit.feedback.page.conftest import bearer

SLOW = "|" + "a|" * 127 + "\n|" + "-|" * 127 + "\n" + "|\n" * 7_500
"""A table that Markdown completes to a million cells: seconds."""


def served(desk: Any, pair: Any, response: str) -> TestClient:
    """A page whose only pair has this response."""
    key = pair_id(pair.prompt, response, pair.response_b)
    desk.publish([replace(pair, pair_id=key, response_a=response)])
    return TestClient(create_app(desk.database, ServerParams()), base_url="http://127.0.0.1")


def test_plain_text_ends_where_the_other_does(desk: Any, make_pairs: Any) -> None:
    client = served(desk, make_pairs(1)[0], "é" * (SHOWN_CHARACTERS + 1_234))
    task = client.post("/api/task", headers=bearer(desk)).json()["task"]
    plain = max(task["left_raw"], task["right_raw"], key=len)
    assert plain.count("é") == SHOWN_CHARACTERS
    assert plain.endswith("[1,234 more characters are not shown.]")


def test_a_text_that_is_slow_to_show_keeps_nobody_elses_answer_waiting(
    desk: Any, make_pairs: Any
) -> None:
    client = served(desk, make_pairs(1)[0], SLOW)
    headers, took = bearer(desk), []

    def load() -> None:
        started = time.monotonic()
        assert client.post("/api/task", headers=headers).status_code == 200
        took.append(time.monotonic() - started)

    slow = threading.Thread(target=load)
    slow.start()
    # A twentieth of what it takes to show the text, and ten times what it takes to find the pair.
    time.sleep(0.2)
    started = time.monotonic()
    desk.hire("ben")
    waited = time.monotonic() - started
    slow.join()
    assert waited < took[0] / 2

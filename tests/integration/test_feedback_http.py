"""A scripted person at the running server: publish, label over HTTP, event, judgments; kill -9."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from feedback.annotators import LabelParams, MissingJudgmentsError
from feedback.judgments import read_judgments, read_pairs, to_lines
from feedback.people import PeopleAnnotator
from preferences.records import pair_id
from tests.background import hear_signals
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


class Prefect(HTTPServer):
    """Takes events as Prefect's API does; refuses the first, to see whether it comes again."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.arrived = threading.Event()
        self.refusals = 0
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Prefect

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusals == 0:
            self.server.refusals += 1
            self.send_response(503)
            self.end_headers()
            return
        assert self.path == "/api/events"
        self.server.events += body
        self.send_response(204)
        self.end_headers()
        self.server.arrived.set()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def prefect() -> Iterator[Prefect]:
    server = Prefect()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def feedback(store: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, *rest = arguments
    return subprocess.run(
        [sys.executable, "-m", "feedback", command, "--store", str(store), *rest],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PREFECT_API_URL": ""},
        check=False,
    )


def start(store: Path, prefect_url: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "feedback", "serve", "--store", str(store)]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--prefect-url", prefect_url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=hear_signals,
    )
    assert process.stdout is not None
    address = process.stdout.readline().split(": ", 1)[1].split("/login")[0].split()[0]
    return process, address


def write_comparisons(path: Path, count: int) -> Path:
    rows = []
    for n in range(count):
        prompt, a, b = f"Where is order {n}?", f"Order {n} is on its way.", "Go away."
        row = {"pair_id": pair_id(prompt, a, b), "round": "r1", "prompt_id": f"p{n}"}
        row |= {"prompt": prompt, "response_a": a, "response_b": b}
        rows.append(row | {"policy_a": "1" * 64, "policy_b": "2" * 64})
    path.write_text(to_lines(rows), encoding="utf-8")
    return path


def label_everything(address: str, token: str, keys: str = "answer") -> int:
    """A person who finds the polite answer, whichever side it is on; returns how many they gave."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, headers=headers, timeout=300) as client:
        view = client.post("/api/task").json()
        given = 0
        while view["state"] == "pair":
            task = view["task"]
            body = {
                "assignment_id": task["assignment_id"],
                "choice": "left" if "on its way" in task["left"] else "right",
                "strength": 4,
                "visible_ms": 3000,
                "key": f"{keys}-{given:06d}",
            }
            view = client.post("/api/judgments", json=body).raise_for_status().json()
            given += 1
        return given


@pytest.mark.long
def test_a_round_is_published_labelled_announced_and_given_to_the_pipeline(
    tmp_path: Path, prefect: Prefect
) -> None:
    store = tmp_path / "feedback.db"
    comparisons = write_comparisons(tmp_path / "comparisons.jsonl", 12)
    pairs = read_pairs(comparisons)
    people = PeopleAnnotator(LabelParams(annotators="people", store=str(store)))
    with pytest.raises(MissingJudgmentsError, match="waits for 12 of 12 judgments"):
        people.judge(pairs)

    token = feedback(store, "token", "ana").stdout.strip()
    server, address = start(store, f"http://127.0.0.1:{prefect.server_port}/api")
    try:
        assert label_everything(address, token) >= 12
    finally:
        server.kill()
        server.wait()
    # The refused event, or one cut off by the kill, comes with the next start.
    server, _ = start(store, f"http://127.0.0.1:{prefect.server_port}/api")
    try:
        assert prefect.arrived.wait(PATIENCE_SECONDS)
    finally:
        server.kill()
        server.wait()
    (event,) = prefect.events
    assert event["event"] == "rlhf.feedback.round-complete"
    assert event["resource"]["prefect.resource.id"] == "rlhf.feedback.r1"
    assert event["payload"]["round"] == "r1"

    judgments = people.judge(pairs)
    assert [one.choice for one in judgments] == ["a"] * 12
    assert {one.kind for one in judgments} == {"human"}
    assert all(one.latency_ms is not None and one.created_at for one in judgments)
    out = tmp_path / "judgments.jsonl"
    assert feedback(store, "export", "--round", "r1", "--out", str(out)).returncode == 0
    by_id = {one.judgment_id: one for one in judgments}
    assert {one.judgment_id: one for one in read_judgments(out)} == by_id


def test_the_first_person_gets_in_by_the_link_and_a_taken_port_is_one_line(tmp_path: Path) -> None:
    store = tmp_path / "feedback.db"
    server, address = start(store, "")
    try:
        port = address.rsplit(":", 1)[1]
        second = feedback(store, "serve", "--port", port)
        assert second.returncode == 2
        assert second.stderr.count("\n") == 1
        assert httpx.get(f"{address}/health").json() == {"ok": True}
    finally:
        server.kill()
        server.wait()
    with_token = feedback(store, "token", "me")
    assert with_token.returncode == 0

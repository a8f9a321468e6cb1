"""Sixteen annotators at the labelling server, which is killed again and again.

    python -m benchmarks.labelling_stress

Starts `python -m feedback serve` on a store of its own, lets simulated people label over HTTP, and
ends the server by kill -9 while they do. Then it compares what was acknowledged with what is
stored. Every request that fails is sent again with the same key, as the page does. Leases are short
and some people wander off in the middle of a pair, so that expiry and hand-over happen too. Prints
one JSON object; exits 1 if anything was lost, doubled or over-assigned.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from feedback import accounts, rounds
from feedback.database import Database
from feedback.judgments import Pair, pair_id


@dataclass(slots=True)
class Tally:
    """What the annotators saw; one writer each, so no lock."""

    acknowledged: list[str] = field(default_factory=list)
    """Submission keys that the server confirmed."""
    seconds: list[float] = field(default_factory=list)
    """Of submissions that were confirmed at the first try."""
    retried: int = 0
    refused: int = 0


class Server:
    """The server process, which a thread kills and starts again."""

    def __init__(self, store: Path, lease_s: float) -> None:
        """Starts nothing yet."""
        self._store, self._lease_s = store, lease_s
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """Where it listens; the same after each start."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it and waits until it listens."""
        command = [sys.executable, "-m", "feedback", "serve", "--store", str(self._store)]
        command += ["--port", str(self._port), "--lease-minutes", str(self._lease_s / 60)]
        command += ["--gold-rate", "0", "--repeat-rate", "0"]
        environment = os.environ | {"PREFECT_API_URL": ""}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._port = int(line.split("127.0.0.1:")[1].split()[0].split("/")[0])

    def kill(self) -> None:
        """Ends it by SIGKILL: no chance to finish anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def annotate(
    server: Server, token: str, given: argparse.Namespace, tally: Tally, seed: int
) -> None:
    """One person, until nothing is left."""
    draw = random.Random(seed)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=30) as client:
        view = _post(client, server, "/api/task", {}, tally)
        while True:
            if view.get("state") != "pair":
                time.sleep(0.5)
                view = _post(client, server, "/api/task", {}, tally)
                if view["settled"] == view["pairs"]:
                    return
                continue
            time.sleep(draw.expovariate(1 / given.think_s))
            if draw.random() < given.wander:
                time.sleep(2 * given.lease_s)
            view = _submit(client, server, view, draw, tally)


def _submit(
    client: httpx.Client, server: Server, view: dict[str, Any], draw: random.Random, tally: Tally
) -> dict[str, Any]:
    key = f"{draw.getrandbits(128):032x}"
    body = {
        "assignment_id": view["task"]["assignment_id"],
        "choice": draw.choice(["left", "right", "tie"]),
        "key": key,
        "visible_ms": 5,
    }
    before, start = tally.retried, time.perf_counter()
    after = _post(client, server, "/api/judgments", body, tally)
    if "detail" in after:
        tally.refused += 1
        return _post(client, server, "/api/task", {}, tally)
    if tally.retried == before:
        tally.seconds.append(time.perf_counter() - start)
    tally.acknowledged.append(key)
    return after


def _post(
    client: httpx.Client, server: Server, path: str, body: dict[str, Any], tally: Tally
) -> dict[str, Any]:
    while True:
        try:
            answer = client.post(f"{server.address}{path}", json=body)
        except httpx.TransportError:
            tally.retried += 1
            time.sleep(0.05)
            continue
        if answer.status_code in (200, 409):
            given: dict[str, Any] = answer.json()
            return given
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole job; returns what is printed."""
    store = folder / "feedback.db"
    database = Database(store)
    with database.writing() as connection:
        tokens = [accounts.new_token(connection, f"p{n}") for n in range(given.annotators)]
        count = given.judgments // given.overlap
        rounds.publish(connection, [_pair(n) for n in range(count)], overlap=given.overlap)
    database.close()
    server = Server(store, given.lease_s)
    server.start()
    tallies = [Tally() for _ in tokens]
    threads = [
        threading.Thread(target=annotate, args=(server, token, given, tally, n))
        for n, (token, tally) in enumerate(zip(tokens, tallies, strict=True))
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(given.kill_every_s)
        if kills < given.kills and any(thread.is_alive() for thread in threads):
            server.kill()
            server.start()
            kills += 1
    seconds = time.perf_counter() - start
    server.kill()
    return _result(store, tallies, given, {"kills": kills, "seconds": round(seconds, 1)})


def _pair(number: int) -> Pair:
    prompt, a, b = f"prompt {number}", f"answer {number} a " * 20, f"answer {number} b " * 20
    return Pair(
        pair_id=pair_id(prompt, a, b), round="r1", prompt=prompt, response_a=a, response_b=b
    )


def _result(
    store: Path, tallies: list[Tally], given: argparse.Namespace, times: dict[str, Any]
) -> dict[str, Any]:
    database = Database(store)
    with database.reading() as connection:
        query = connection.exec_driver_sql
        keys = Counter(row[0] for row in query("SELECT submission_key FROM labels"))
        done = "SELECT pair_id, count(*), count(DISTINCT annotator_id) FROM assignments "
        counts = list(query(done + "WHERE state = 'done' GROUP BY pair_id"))
        expired = query("SELECT count(*) FROM events WHERE kind = 'expire'").scalar_one()
        logged = query("SELECT count(*) FROM events WHERE kind = 'label'").scalar_one()
        integrity = query("PRAGMA integrity_check").scalar_one()
        complete = all(one.complete for one in rounds.progress(connection))
        swaps = [row[0] for row in query("SELECT swap FROM assignments")]
    database.close()
    acknowledged = [key for tally in tallies for key in tally.acknowledged]
    times_ms = sorted(1000 * second for tally in tallies for second in tally.seconds)
    return {
        "annotators": given.annotators,
        "pairs": given.judgments // given.overlap,
        "acknowledged": len(acknowledged),
        "stored": sum(keys.values()),
        **times,
        "lost": len(set(acknowledged) - set(keys)),
        "doubled": sum(count - 1 for count in Counter(acknowledged).values())
        + sum(count - people for _, count, people in counts),
        "over_assigned": sum(count > given.overlap + 1 for _, count, _ in counts),
        "log_differs_by": abs(logged - sum(keys.values())),
        "complete": complete,
        "integrity": integrity,
        "leases_expired": expired,
        "sides_exchanged": _share(sum(swaps), len(swaps)),
        "load_average": os.getloadavg(),
        "late_answers_refused": sum(tally.refused for tally in tallies),
        "requests_retried": sum(tally.retried for tally in tallies),
        "submit_ms": {
            "p50": round(times_ms[len(times_ms) // 2], 1),
            "p99": round(times_ms[int(0.99 * len(times_ms))], 1),
            "max": round(times_ms[-1], 1),
            "n": len(times_ms),
        },
    }


def _share(count: int, n: int) -> dict[str, float]:
    """A share, and how many standard deviations of a fair coin it is away from one half."""
    return {"share": round(count / n, 4), "deviations": round((count - n / 2) / (n / 4) ** 0.5, 2)}


def main() -> int:
    """Runs it with the figures of the issue, or with those given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--annotators", type=int, default=16)
    parser.add_argument("--judgments", type=int, default=5000, help="wanted before third votes")
    parser.add_argument("--overlap", type=int, default=2)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--kill-every-s", type=float, default=4)
    parser.add_argument("--think-s", type=float, default=0.4, help="mean time at a pair")
    parser.add_argument("--lease-s", type=float, default=3)
    parser.add_argument("--wander", type=float, default=0.01, help="share of pairs left lying")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(given, Path(folder))
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    wrong = result["lost"] + result["doubled"] + result["over_assigned"]
    return int(bool(wrong) or not result["complete"])


if __name__ == "__main__":
    sys.exit(main())

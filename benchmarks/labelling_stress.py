"""Stress test: sixteen annotators use a labelling server that is killed repeatedly.

    python -m benchmarks.labelling_stress

Starts `python -m feedback serve` on its own store, lets simulated people label over HTTP, and kills
the server with SIGKILL meanwhile. Then it compares the acknowledged with the stored answers. Failed
requests are resent with the same key and the same pauses as by the page. Leases are short and some
people leave in the middle of a pair, so that leases expire and pairs change hands; gold items and
repeats are mixed in at the default rates.

People take `--think-s` per pair on average (exponentially distributed), far less than real people,
who need ten seconds or more to read. Afterwards, on a fresh store and without kills, they take no
thinking time: the saturated throughput, at which all wait for each other.

Prints one JSON object; exits 1 if anything was lost, duplicated or over-assigned. The simulated
people share the machine with the server.
"""

import argparse
import http.client
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedback.judgments import Pair
from feedback.store import accounts, rounds
from feedback.store.database import Database
from preferences.records import pair_id

GOLD_ITEMS = 50
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 4.0
"""Pauses of the page before it resends a request (`feedback/page/static/annotate.js`)."""


@dataclass(slots=True)
class Tally:
    """What one annotator saw."""

    acknowledged: list[str] = field(default_factory=list)
    """Submission keys that the server confirmed."""
    direct: list[float] = field(default_factory=list)
    """Seconds of submissions confirmed at the first attempt."""
    waited: list[float] = field(default_factory=list)
    """Seconds, from the first attempt, of submissions during which the server was down or died."""
    retried: int = 0
    refused: int = 0


class Server:
    """The server process, which a thread kills and restarts."""

    def __init__(self, store: Path, lease_s: float) -> None:
        """Starts nothing yet."""
        self._store, self._lease_s = store, lease_s
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it and waits until it listens; at the same port as before."""
        command = [sys.executable, "-m", "feedback", "serve", "--store", str(self._store)]
        command += ["--port", str(self.port), "--lease-minutes", str(self._lease_s / 60)]
        environment = os.environ | {"PREFECT_API_URL": ""}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.port = int(line.split("127.0.0.1:")[1].split()[0].split("/")[0])

    def is_complete(self) -> bool:
        """Whether every pair is settled; what the page tells people is an estimate."""
        with closing(sqlite3.connect(self._store)) as connection:
            query = "SELECT count(*) FROM round_pairs WHERE needed > 0"
            return bool(connection.execute(query).fetchone()[0] == 0)

    def kill(self) -> None:
        """Ends it by SIGKILL: no chance to finish anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class Person:
    """One simulated annotator, in a thread of its own."""

    def __init__(self, server: Server, token: str, given: argparse.Namespace, seed: int) -> None:
        self._server, self._given, self._draw = server, given, random.Random(seed)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None
        self.tally = Tally()

    def work(self, think_s: float) -> None:
        """Labels until nothing is left."""
        view = self._post("/api/task", {})
        while view["state"] != "paused":
            if view["state"] == "empty":
                if self._server.is_complete():
                    return
                time.sleep(0.5)
                view = self._post("/api/task", {})
                continue
            if think_s:
                time.sleep(self._draw.expovariate(1 / think_s))
                if self._draw.random() < self._given.wander:
                    time.sleep(2 * self._given.lease_s)
            view = self._submit(view["task"])

    def _submit(self, task: dict[str, Any]) -> dict[str, Any]:
        key = f"{self._draw.getrandbits(128):032x}"
        body = {"assignment_id": task["assignment_id"], "choice": self._choice(task)}
        body |= {"key": key, "visible_ms": 5000}
        before, start = self.tally.retried, time.perf_counter()
        after = self._post("/api/judgments", body)
        seconds = time.perf_counter() - start
        if "detail" in after:
            self.tally.refused += 1
            return self._post("/api/task", {})
        (self.tally.direct if self.tally.retried == before else self.tally.waited).append(seconds)
        self.tally.acknowledged.append(key)
        return after

    def _choice(self, task: dict[str, Any]) -> str:
        """Nine times of ten the answer that says `a`."""
        a_is_left = " a " in task["left_raw"]
        kind = self._draw.random()
        if kind < 0.05:
            return "tie"
        return "left" if a_is_left == (kind < 0.95) else "right"

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        wait = FIRST_WAIT_S
        while True:
            try:
                return self._once(path, json.dumps(body))
            except (OSError, http.client.HTTPException):
                self._connection = None
                self.tally.retried += 1
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)

    def _once(self, path: str, body: str) -> dict[str, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._server.port, timeout=60
            )
        self._connection.request("POST", path, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 409):
            raise RuntimeError(f"{path}: {answer.status} {text.decode()}")
        given: dict[str, Any] = json.loads(text)
        return given


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both parts; returns what is printed."""
    people = {"annotators": given.annotators, "mean_think_s": given.think_s}
    killed = _part(given, folder / "killed.db", given.judgments, given.think_s, given.kills)
    saturated = _part(given, folder / "saturated.db", given.saturated, 0.0, 0)
    return people | killed | {"without_thinking_or_kills": saturated}


def _part(
    given: argparse.Namespace, store: Path, judgments: int, think_s: float, kills: int
) -> dict[str, Any]:
    tokens = _fill(store, given, judgments // given.overlap)
    server = Server(store, given.lease_s)
    server.start()
    people = [Person(server, token, given, n) for n, token in enumerate(tokens)]
    threads = [threading.Thread(target=one.work, args=(think_s,)) for one in people]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    done, last = 0, 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        now = sum(len(one.tally.acknowledged) for one in people)
        # Spread over the work, so that there are as many as asked however fast it goes.
        if done < kills and now - last >= judgments / (kills + 1):
            server.kill()
            server.start()
            done, last = done + 1, now
    seconds = time.perf_counter() - start
    server.kill()
    tallies = [one.tally for one in people]
    return {"kills": done} | _counts(store, tallies, given) | _times(tallies, seconds)


def _fill(store: Path, given: argparse.Namespace, pairs: int) -> list[str]:
    """A store with a round and gold items; the people's tokens."""
    database = Database(store)
    with database.writing() as connection:
        tokens = [accounts.new_token(connection, f"p{n}") for n in range(given.annotators)]
        rounds.publish(connection, [_pair(n) for n in range(pairs)], overlap=given.overlap)
        gold = [_pair(-n) for n in range(1, GOLD_ITEMS + 1)]
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    database.close()
    return tokens


def _pair(number: int) -> Pair:
    prompt, a, b = f"prompt {number}", f"answer {number} a " * 20, f"answer {number} b " * 20
    return Pair(
        pair_id=pair_id(prompt, a, b), round="r1", prompt=prompt, response_a=a, response_b=b
    )


def _counts(store: Path, tallies: list[Tally], given: argparse.Namespace) -> dict[str, Any]:
    database = Database(store)
    with database.reading() as connection:
        query = connection.exec_driver_sql
        keys = Counter(row[0] for row in query("SELECT submission_key FROM labels"))
        done = "SELECT count(*), count(DISTINCT annotator_id) FROM assignments "
        done += "WHERE state = 'done' AND purpose = 'label' GROUP BY pair_id"
        counts = list(query(done))
        events = dict(tuple(row) for row in query("SELECT kind, count(*) FROM events GROUP BY 1"))
        integrity = query("PRAGMA integrity_check").scalar_one()
        complete = all(one.complete for one in rounds.progress(connection))
        swaps = [row[0] for row in query("SELECT swap FROM assignments")]
    database.close()
    acknowledged = [key for tally in tallies for key in tally.acknowledged]
    return {
        "acknowledged": len(acknowledged),
        "stored": sum(keys.values()),
        "lost": len(set(acknowledged) - set(keys)),
        "doubled": sum(count - 1 for count in Counter(acknowledged).values())
        + sum(count - 1 for count in keys.values())
        + sum(count - people for count, people in counts),
        "over_assigned": sum(count > given.overlap + 1 for count, _ in counts),
        "log_differs_by": abs(events["label"] - sum(keys.values())),
        "complete": complete,
        "integrity": integrity,
        "leases_expired": events.get("expire", 0),
        "sides_exchanged": _share(sum(swaps), len(swaps)),
        "late_answers_refused": sum(tally.refused for tally in tallies),
        "requests_retried": sum(tally.retried for tally in tallies),
    }


def _times(tallies: list[Tally], seconds: float) -> dict[str, Any]:
    direct = [second for tally in tallies for second in tally.direct]
    waited = [second for tally in tallies for second in tally.waited]
    return {
        "seconds": round(seconds, 1),
        "submissions_per_second": round((len(direct) + len(waited)) / seconds, 1),
        "submit_ms": _quantiles(direct),
        "submit_ms_through_a_restart": _quantiles(waited),
        "load_average": os.getloadavg(),
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {"n": 0}
    ms = sorted(1000 * second for second in seconds)
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    named = {name: round(ms[int(share * len(ms))], 1) for name, share in at.items()}
    return named | {"max": round(ms[-1], 1), "n": len(ms)}


def _share(count: int, n: int) -> dict[str, float]:
    """A share, and how many standard deviations of a fair coin it is away from one half."""
    return {"share": round(count / n, 4), "deviations": round((count - n / 2) / (n / 4) ** 0.5, 2)}


def main() -> int:
    """Runs the test with the default or the given numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--annotators", type=int, default=16)
    parser.add_argument("--judgments", type=int, default=5000, help="wanted before third votes")
    parser.add_argument("--overlap", type=int, default=2)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--think-s", type=float, default=1.0, help="mean time at a pair")
    parser.add_argument("--lease-s", type=float, default=5)
    parser.add_argument("--wander", type=float, default=0.01, help="share of pairs left lying")
    parser.add_argument("--saturated", type=int, default=1000, help="judgments without thinking")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(given, Path(folder))
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    parts = [result, result["without_thinking_or_kills"]]
    wrong = sum(part["lost"] + part["doubled"] + part["over_assigned"] for part in parts)
    return int(bool(wrong) or not all(part["complete"] for part in parts))


if __name__ == "__main__":
    sys.exit(main())

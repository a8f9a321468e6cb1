"""Fuzzes the labelling page with steps that fit each other, against a model of what must happen.

    python -m benchmarks.fuzz_page_steps --minutes 30 --seed 0

Two annotators with two browsers each and a lead sign in and out, take pairs, answer the newest or
one from before, send an answer again, undo, are paused and resumed; rounds are published with other
pairs, exported, and the page is started anew; in any order, drawn by Hypothesis. The page's
application runs in this process; each example gives it a store of its own, on disk. After each
step the reply must be the one that `benchmarks.fuzz_page_model` expects, with the security headers;
exports must hold what stands by the model; after each example the store must be sound
(`benchmarks.fuzz_page_store`). Broken requests and calls at the same time are sent by
`benchmarks.fuzz_page`.

The minutes are those of the processor. A line is printed after each seed, with what all seeds so
far have come to; the exit code is 1 if something was found. `--only-seed` repeats one seed, and
reduces what it finds.
"""

import argparse
import functools
import itertools
import json
import re
import sys
import time
from dataclasses import asdict
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from benchmarks.fuzz_page_app import GOLD, PAIRS, Server
from benchmarks.fuzz_page_model import Worker
from benchmarks.fuzz_page_store import OVERLAP, check_exports, check_store, hold
from feedback.judgments import to_lines
from feedback.store import accounts, rounds

EXAMPLES = 100
"""Examples per seed."""
STEPS = 50
"""Most steps of an example."""
_CSRF = re.compile(r'name="csrf" content="([0-9a-f]+)"')
_tabs = st.integers(0, 3)
"""Of the first person, then of the second, two each."""
_choices = st.sampled_from(("left", "right", "tie", "both_bad"))


class _Tab:
    """A browser: its cookies, the pair it shows, the answer it sent last."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.headers: dict[str, str] | None = None
        self.task: str | None = None
        self.sent: tuple[str, str, str] | None = None
        self.undo_key: str | None = None


@functools.cache
def server() -> Server:
    """The one of this process."""
    return Server()


class Page(RuleBasedStateMachine):
    """The steps of one example."""

    def __init__(self) -> None:
        """A new store with a round, everybody signed in, and each browser with a pair."""
        super().__init__()
        self._numbers = itertools.count()
        self._active = {str(pair.prompt) for pair in PAIRS}
        self._workers = [Worker(name, frozenset(self._active)) for name in ("ana-0", "ben-0")]
        self._tabs = [_Tab(worker) for worker in self._workers for _ in range(2)]
        self._lead_paused = self._restarted = False
        server().renew()
        with server().database.writing() as connection:
            # A third vote can always be given: `needed` then depends on the answers alone.
            for name in ("p1", "p2", "p3"):
                accounts.new_token(connection, name)
            names = [worker.name for worker in self._workers]
            self._tokens = {name: accounts.new_token(connection, name) for name in names}
            lead = accounts.new_token(connection, "lea-0", role="lead")
            rounds.publish(connection, PAIRS, overlap=OVERLAP)
            rounds.add_pairs(connection, GOLD, {pair.pair_id: "a" for pair in GOLD})
        self._lead = {"Authorization": f"Bearer {lead}"}
        for number in range(len(self._tabs)):
            self.sign(number, out=False)
            self.next_pair(number)

    @rule(tab=_tabs, out=st.booleans())
    def sign(self, tab: int, out: bool) -> None:
        """In with the token, for a session of its own, or out, of this browser only."""
        this = self._tabs[tab]
        if out:
            self._as_expected(this, "/api/logout", refused=False)
            this.headers = None
            return
        reply = self._post("/api/login", {}, token=self._tokens[this.worker.name])
        hold(reply.status_code == 200, f"sign in: {reply.status_code}")
        ((name, value),) = reply.cookies.items()
        cookie = {"Cookie": f"{name}={value}"}
        found = _CSRF.search(server().send("GET", "/", headers=cookie).text)
        assert found is not None
        this.headers = {**cookie, "X-CSRF-Token": found[1]}

    @rule(tab=_tabs)
    def next_pair(self, tab: int) -> None:
        """What the page asks when it is opened, or reloaded."""
        this = self._tabs[tab]
        reply = self._as_expected(this, "/api/task", refused=False)
        if reply is not None:
            this.task = this.worker.sees(reply, self._active) or this.task

    @rule(tab=_tabs, choice=_choices)
    def submit(self, tab: int, choice: str) -> None:
        """An answer to the pair that this browser shows, however old it is."""
        this = self._tabs[tab]
        if this.task is not None:
            self._submit(this, this.task, choice, self._key(tab))

    @rule(tab=_tabs, choice=st.none() | _choices)
    def submit_again(self, tab: int, choice: str | None) -> None:
        """The last answer with its key, as after a lost reply; or another one with this key."""
        this = self._tabs[tab]
        if this.sent is not None:
            assignment, before, key = this.sent
            self._submit(this, assignment, choice or before, key)

    @rule(tab=_tabs, again=st.sampled_from((False, False, True)))
    def undo(self, tab: int, again: bool) -> None:
        """With a key of its own, or that of the last undo of this browser."""
        this = self._tabs[tab]
        key = this.undo_key if again and this.undo_key else self._key(tab)
        this.undo_key = key
        refused = this.worker.undo_is_refused(key, self._active)
        reply = self._as_expected(this, "/api/undo", refused=refused, key=key)
        if reply is not None:
            this.worker.undone(key, done=reply["undone"])
            this.task = this.worker.sees(reply, self._active) or this.task

    @rule(whom=st.integers(0, 2), paused=st.booleans())
    def pause(self, whom: int, paused: bool) -> None:
        """The lead pauses or resumes somebody; then whoever has the command resumes the lead."""
        name = [*(worker.name for worker in self._workers), "lea-0"][whom]
        reply = self._post("/api/lead/person", self._lead, annotator_id=name, paused=paused)
        if not self._lead_may(reply):
            with server().database.writing() as connection:
                accounts.resume(connection, "lea-0")
            self._lead_paused = False
        elif whom == len(self._workers):
            self._lead_paused = paused
        elif paused:
            self._workers[whom].stop()
        else:
            self._workers[whom].paused = False

    @rule(which=st.sets(st.sampled_from(range(len(PAIRS))), min_size=5))
    def publish(self, which: set[int]) -> None:
        """The round with these pairs only."""
        pairs = [PAIRS[number] for number in sorted(which)]
        content = to_lines([asdict(pair) for pair in pairs]).encode()
        path = f"/api/lead/publish?round=r1&overlap={OVERLAP}"
        reply = server().send("POST", path, headers=self._lead, content=content)
        if self._lead_may(reply):
            self._active = {str(pair.prompt) for pair in pairs}
            for worker in self._workers:
                worker.published(self._active)

    @rule(form=st.sampled_from(("judgments", "trl", "csv", "label-studio")))
    def export(self, form: str) -> None:
        """The round holds what stands by the model."""
        reply = self._post("/api/lead/export", self._lead, round="r1", form=form)
        if self._lead_may(reply) and form == "judgments":
            self._check_export(reply.text)

    @precondition(lambda self: not self._restarted)
    @rule()
    def restart(self) -> None:
        """The store is closed and opened, once: it takes as long as many other steps."""
        server().restart()
        self._restarted = True

    def teardown(self) -> None:
        """The store must be sound, unless a step has found something already."""
        if sys.exc_info()[0] is None:
            with server().database.reading() as connection:
                check_store(connection, 0)
                check_exports(connection)

    def _key(self, tab: int) -> str:
        return f"tab{tab}-{next(self._numbers):06}"

    def _post(self, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
        return server().send("POST", path, headers=headers, json=body)

    def _as_expected(
        self, tab: _Tab, path: str, *, refused: bool | None, **body: Any
    ) -> dict[str, Any] | None:
        """What came, if it is accepted; `refused` None: either may be."""
        reply = self._post(path, tab.headers or {}, **body)
        code = reply.status_code
        if tab.headers is None:
            hold(code == 401, f"{path} without a session: {code}")
        elif refused is None:
            hold(code in (200, 409), f"{path}: {code}")
        else:
            hold(code == (409 if refused else 200), f"{path}, refused {refused}: {reply.text}")
        return reply.json() if code == 200 else None

    def _submit(self, tab: _Tab, assignment: str, choice: str, key: str) -> None:
        worker = tab.worker
        known, refused = key in worker.keys, worker.refuses(assignment, choice, key, self._active)
        late = not (refused or known) and worker.may_be_late(assignment)
        body = {"assignment_id": assignment, "choice": choice, "key": key}
        reply = self._as_expected(tab, "/api/judgments", refused=None if late else refused, **body)
        tab.sent = (assignment, choice, key)
        if reply is not None:
            worker.submitted(assignment, choice, key, fresh=reply["fresh"])
            tab.task = worker.sees(reply, self._active) or tab.task

    def _lead_may(self, reply: httpx.Response) -> bool:
        hold(
            reply.status_code == (409 if self._lead_paused else 200),
            f"the lead, paused {self._lead_paused}: {reply.status_code} {reply.text}",
        )
        return reply.status_code == 200

    def _check_export(self, text: str) -> None:
        pairs = {pair.pair_id: pair for pair in PAIRS}
        found = set()
        for row in map(json.loads, filter(None, text.split("\n"))):
            pair = pairs[row["pair_id"]]
            sides = {"a": pair.response_a, "b": pair.response_b}
            choice = sides.get(row["choice"], row["choice"])
            found.add((row["annotator_id"], str(pair.prompt), choice))
        expected = set().union(*(worker.expected(self._active) for worker in self._workers))
        hold(found == expected, f"exported {sorted(found)}, expected {sorted(expected)}")


def run_seed(number: int, examples: int, *, reduced: bool = False) -> str | None:
    """Goes through the examples of one seed; returns what fell short, if anything."""
    machine = seed(number)(type("Page", (Page,), {}))
    limits = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if reduced else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        run_state_machine_as_test(machine, settings=limits)
    except Exception as error:  # of whatever kind: it is a finding
        notes = "\n".join(getattr(error, "__notes__", []))
        return f"{type(error).__name__}: {error}\n{notes}".strip()
    return None


def main() -> int:
    """Fuzzes for the given time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="of the processor")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--only-seed", action="store_true", help="do not go on to further seeds")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="per seed")
    given = parser.parse_args()
    begin, findings = time.monotonic(), 0
    for number in itertools.count(given.seed):
        found = run_seed(number, given.examples, reduced=given.only_seed)
        if found is not None:
            findings += 1
            sys.stdout.write(f"seed {number}: {found}\n")
        replies = ", ".join(
            f"{count:,} of {code}" for code, count in sorted(server().statuses.items())
        )
        sys.stdout.write(
            f"seeds {given.seed} to {number} of {given.examples} examples, {findings} findings, in "
            f"{time.process_time() / 60:.1f} minutes of the processor "
            f"({(time.monotonic() - begin) / 60:.1f} on the clock): replies {replies}\n"
        )
        sys.stdout.flush()
        if given.only_seed or time.process_time() > 60 * given.minutes:
            break
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())

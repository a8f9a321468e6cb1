"""A store in a temporary folder, people who answer at it, and the commands that work on it."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedback.__main__ import main
from feedback.judges import LanguageModelAnnotator, LanguageModelParams
from feedback.judgments import Pair, to_lines
from feedback.store import accounts, assignments, rounds, submissions
from feedback.store.assignments import ServeParams, Task
from feedback.store.database import Database
from preferences.records import pair_id
from tests.unit.feedback.model_endpoint import Endpoint

PLAIN = ServeParams(gold_rate=0, repeat_rate=0)

PairMaker = Callable[..., list[Pair]]
Command = Any


def some_pairs(count: int, key: str = "r1", start: int = 0) -> list[Pair]:
    """Pairs number `start` to `start + count - 1`; the same numbers have the same content."""
    rows = [(f"prompt {n}", f"answer {n} a", f"answer {n} b") for n in range(start, start + count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round=key, prompt=p, response_a=a, response_b=b)
        for p, a, b in rows
    ]


class Desk:
    """A store with the steps that a person at the page takes, each in its own transaction."""

    def __init__(self, url: str | Path) -> None:
        self.database = Database(url)
        self._keys = (f"key-{n}" for n in itertools.count())

    def publish(self, pairs: Sequence[Pair], overlap: int | None = 1) -> rounds.Published:
        with self.database.writing() as connection:
            return rounds.publish(connection, pairs, overlap=overlap)

    def hire(self, *names: str) -> None:
        with self.database.writing() as connection:
            for name in names:
                accounts.new_token(connection, name)

    def serve(self, name: str, params: ServeParams = PLAIN) -> Task | None:
        with self.database.writing() as connection:
            return assignments.next_task(connection, name, params)

    def submit(
        self,
        task: Task,
        choice: str = "left",
        *,
        key: str | None = None,
        name: str | None = None,
        visible_ms: int | None = None,
        strength: int | None = None,
    ) -> bool:
        given = submissions.Submission(
            assignment_id=task.assignment_id,
            choice=choice,
            strength=strength,
            reason=None,
            visible_ms=visible_ms,
            key=key or next(self._keys),
            guideline_hash="g1",
        )
        with self.database.writing() as connection:
            return submissions.submit(connection, name or task.annotator_id, given)

    def answer(self, name: str, choice: str = "left", params: ServeParams = PLAIN) -> Task | None:
        """Serves and submits once; `a` and `b` name answers, whatever side they are on."""
        task = self.serve(name, params)
        if task is not None:
            if choice in ("a", "b"):
                choice = "left" if (choice == "a") != task.swap else "right"
            self.submit(task, choice)
        return task

    def undo(self, name: str, key: str | None = None) -> Task | None:
        key = key or next(self._keys)
        with self.database.writing() as connection:
            return submissions.undo(connection, name, key=key, lease_ms=PLAIN.lease_ms)

    def progress(self, key: str = "r1") -> rounds.Progress:
        with self.database.reading() as connection:
            return next(one for one in rounds.progress(connection) if one.round == key)

    def sql(self, query: str) -> list[tuple[object, ...]]:
        with self.database.writing() as connection:
            result = connection.exec_driver_sql(query)
            return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture
def make_pairs() -> PairMaker:
    return some_pairs


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path / "feedback.db")
    yield opened
    opened.database.close()


@pytest.fixture
def run(desk: Any, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on the desk's store; returns (exit code, stdout, stderr)."""
    store = desk.sql("PRAGMA database_list")[0][2]

    def command(name: str, *arguments: object) -> tuple[int, str, str]:
        code = main([name, "--store", str(store), *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def write_comparisons(path: Path, pairs: Any) -> Path:
    rows = [
        {
            "pair_id": pair.pair_id,
            "round": pair.round,
            "prompt_id": "p",
            "prompt": pair.prompt,
            "response_a": pair.response_a,
            "response_b": pair.response_b,
            "policy_a": "hash of one",
            "policy_b": "hash of another",
        }
        for pair in pairs
    ]
    path.write_text(to_lines(rows), encoding="utf-8")
    return path


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(endpoint: Endpoint, tmp_path: Path) -> Callable[..., LanguageModelAnnotator]:
    def make(**changes: Any) -> LanguageModelAnnotator:
        params = LanguageModelParams(endpoint=endpoint.address, model="judge-1")
        return LanguageModelAnnotator(replace(params, **changes), cache=tmp_path)

    return make


@pytest.fixture
def pairs(make_pairs: Any) -> list[Any]:
    texts = [("good one", "bad one"), ("bad two", "good two")]
    return [
        replace(pair, response_a=a, response_b=b, pair_id=pair_id(pair.prompt, a, b))
        for pair, (a, b) in zip(make_pairs(2), texts, strict=True)
    ]

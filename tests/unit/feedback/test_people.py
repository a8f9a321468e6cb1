"""People as annotators: a stage waits for their judgments, in the store that it is told of."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feedback import people as people_module
from feedback.__main__ import main
from feedback.annotators import LabelParams, MissingJudgmentsError
from feedback.people import PeopleAnnotator
from preferences.records import Judgment


def test_people_as_annotators_wait_then_give_their_judgments(desk: Any, make_pairs: Any) -> None:
    store = str(desk.sql("PRAGMA database_list")[0][2])
    people = PeopleAnnotator(LabelParams(annotators="people", store=store))
    pairs = make_pairs(4)
    desk.hire("ana")
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 4 of 4 judgments") as waits:
        people.judge(pairs)
    assert "make annotate" in str(waits.value)
    for _ in range(3):
        desk.answer("ana", "a")
    with pytest.raises(MissingJudgmentsError, match="waits for 1 of 4"):
        people.judge(pairs)
    desk.answer("ana", "b")
    judgments = people.judge(pairs)
    assert [one.pair_id for one in judgments] == [pair.pair_id for pair in pairs]
    assert sorted(one.choice for one in judgments) == ["a", "a", "a", "b"]
    assert people.judge(pairs) == judgments
    # Both times they were taken out, and that is in the log.
    log = desk.sql("SELECT round, detail FROM events WHERE kind = 'export'")
    assert log == [("r1", '{"form": "stage", "n": 4}')] * 2


def test_the_environment_can_name_the_store_that_all_workspaces_share(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_FEEDBACK_STORE", str(desk.sql("PRAGMA database_list")[0][2]))
    people = PeopleAnnotator(LabelParams(annotators="people", store="/nowhere/else.db"))
    people.publish(make_pairs(3))
    assert desk.progress().missing == 3


def test_commands_that_name_no_store_take_that_which_the_stage_asks(
    make_pairs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The stage says that `make annotate` opens the page."""
    monkeypatch.delenv("RLHF_FEEDBACK_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("label: {annotators: people, store: mine/labels.db}\n")
    people = PeopleAnnotator(LabelParams(annotators="people", store="mine/labels.db"))
    people.publish(make_pairs(4))

    assert main(["status", "--round", "r1"]) == 5
    assert "round r1: 0 of 4 pairs settled" in capsys.readouterr().out
    monkeypatch.setenv("RLHF_FEEDBACK_STORE", "other.db")
    assert main(["status"]) == 2
    assert "other.db: no such store" in capsys.readouterr().err


def test_params_that_are_no_yaml_are_refused_where_they_would_name_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RLHF_FEEDBACK_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("label: {store: a.db\n")

    assert main(["token", "ana"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("params.yaml: is no YAML")
    assert error.count("\n") == 1
    assert main(["publish", "--store", "b.db", "--round", "r1", "--comparisons", "none"]) == 2
    assert "none" in capsys.readouterr().err


def test_answers_are_taken_while_the_judgments_of_a_round_are_read(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many pairs take seconds."""
    store = str(desk.sql("PRAGMA database_list")[0][2])
    pairs = make_pairs(1)
    desk.hire("ana")
    desk.publish(pairs)
    desk.answer("ana", "a")
    read = people_module.judgments_of

    def reads_beside_a_writer(connection: Any, given: Any) -> list[Judgment]:
        with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            found = read(connection, given)
            other.execute("COMMIT")
        return found

    monkeypatch.setattr(people_module, "judgments_of", reads_beside_a_writer)
    people = PeopleAnnotator(LabelParams(annotators="people", store=store))
    assert [one.choice for one in people.judge(pairs)] == ["a"]


def test_a_run_whose_round_another_run_publishes_meanwhile_waits_for_its_own_pairs(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that wait for a round of one name are ordered at once, when it is complete."""
    store = str(desk.sql("PRAGMA database_list")[0][2])
    ours, others = make_pairs(3), make_pairs(4, start=3)
    desk.hire("ana")
    desk.publish(others)
    for _ in others:
        desk.answer("ana", "a")
    people = PeopleAnnotator(LabelParams(annotators="people", store=store))
    publish = people.publish

    def the_other_run_comes_next(pairs: Any) -> None:
        publish(pairs)
        desk.publish(others)

    monkeypatch.setattr(people, "publish", the_other_run_comes_next)
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 3 of 3 judgments"):
        people.judge(ours)
    desk.publish(ours)
    for _ in ours:
        desk.answer("ana", "b")
    assert [one.choice for one in people.judge(ours)] == ["b", "b", "b"]
    others += make_pairs(1, start=7)  # It is theirs to wait for.
    assert [one.choice for one in people.judge(ours)] == ["b", "b", "b"]

"""A reason may say what was withdrawn."""

from typing import Any

from feedback.store.submissions import Submission, submit
from feedback.store.withdrawing import held, withdraw
from tests.unit.feedback.conftest import some_pairs


def test_an_answer_whose_reason_says_it_goes_alone(desk: Any) -> None:
    desk.hire("ana")
    desk.publish(some_pairs(2))
    for reason in ("Kim said so", "shorter"):
        task = desk.serve("ana")
        given = Submission(
            assignment_id=task.assignment_id, choice="left", strength=None, reason=reason,
            visible_ms=None, key=f"key-{reason[:3]}", guideline_hash="g1",
        )  # fmt: skip
        with desk.database.writing() as connection:
            submit(connection, "ana", given)
    with desk.database.writing() as connection:
        found = held(connection, person=lambda *_: False, said=lambda text: "Kim" in text)
        assert (len(found.assignments), len(found.labels), found.pairs) == (1, 1, ())
        withdraw(connection, found)

    assert desk.sql("SELECT reason FROM labels") == [("shorter",)]
    assert desk.progress().missing == 1

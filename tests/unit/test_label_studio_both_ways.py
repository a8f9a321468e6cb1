"""Label Studio's tasks that one half of the project writes, the other reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from feedback.formats.label_studio import read_export, to_tasks
from feedback.judgments import Pair, read_judgments, read_pairs
from preferences.formats.label_studio import label_studio_to_row
from preferences.formats.reading import open_source
from preferences.formats.votes import votes_from_row
from preferences.formats.writing import write_items
from preferences.records import Choice, Judgment, Prompt, pair_id, text_hash

MESSAGES: Prompt = [{"role": "user", "content": "Where is it?"}]
PROMPTS = pytest.mark.parametrize("prompt", ["Where is it?", "[1]", MESSAGES])
CHOICES: tuple[Choice, ...] = ("a", "b", "tie", "both_bad", "skip")


@PROMPTS
def test_the_labelling_pages_export_is_read_as_preferences(tmp_path: Path, prompt: Prompt) -> None:
    pair = Pair(
        pair_id=pair_id(prompt, "On its way.", "No."), round="r1", prompt=prompt,
        response_a="On its way.", response_b="No.", finished_b=False,
    )  # fmt: skip
    said = [
        Judgment.of(pair, annotator_id=f"ana {choice}", kind="human", choice=choice)
        for choice in CHOICES
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(to_tasks([pair], said)))

    (found,) = open_source(path)

    assert found.comparison.pair_id == pair.pair_id
    assert found.comparison.prompt == prompt
    of = {found.comparison.response_a: "a", found.comparison.response_b: "b"}
    assert (of["On its way."], of["No."]) in (("a", "b"), ("b", "a"))
    finished = {"a": found.comparison.finished_a, "b": found.comparison.finished_b}
    assert (finished[of["On its way."]], finished[of["No."]]) == (True, False)
    same = {"a": of["On its way."], "b": of["No."]}
    assert {one.annotator_id: one.choice for one in found.judgments} == {
        f"ana {choice}": same.get(choice, choice) for choice in CHOICES
    }


@PROMPTS
def test_converted_votes_are_read_by_the_labelling_side(tmp_path: Path, prompt: Prompt) -> None:
    workers = [f"w {choice}" for choice in CHOICES]
    row = {"prompt": prompt, "response_a": "On its way.", "response_b": "No.", "round": "r1"}
    item = votes_from_row({**row, "votes": list(CHOICES), "workers": workers}, "row 1")
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([label_studio_to_row(item)]))

    found = read_export(path, "r1")

    assert [(one.annotator_id, one.choice) for one in found] == list(
        zip(workers, CHOICES, strict=True)
    )
    assert {one.pair_id for one in found} == {pair_id(prompt, "On its way.", "No.")}


def test_votes_that_were_made_judgments_are_read_by_the_labelling_side(tmp_path: Path) -> None:
    row = {"prompt": "Where?", "response_a": "Here.", "response_b": "No.", "round": "r1"}
    item = votes_from_row({**row, "votes": ["a"], "workers": ["ana"]}, "row 1")
    write_items(tmp_path / "out", [item], "judgments")

    (judgment,) = read_judgments(tmp_path / "out/judgments.jsonl")
    (pair,) = read_pairs(tmp_path / "out/comparisons.jsonl")

    assert (judgment.annotator_id, judgment.choice) == ("ana", "a")
    assert judgment == replace(judgment, annotator_version="", pair_id=pair.pair_id)


def test_how_much_better_a_response_is_arrives_as_the_margin(tmp_path: Path) -> None:
    """As it does where the same export is `label.file`."""
    pair = Pair(pair_id=pair_id("Where?", "Here.", "No."), round="r1", prompt="Where?",
                response_a="Here.", response_b="No.")  # fmt: skip
    said: list[tuple[Choice, int | None]] = [("a", 4), ("b", 2), ("a", None), ("tie", None)]
    judgments = [
        Judgment.of(pair, annotator_id=f"ana {number}", kind="human", choice=choice,
                    strength=strength, answer_a=text_hash("Here."))
        for number, (choice, strength) in enumerate(said)
    ]  # fmt: skip
    path = tmp_path / "export.json"
    path.write_text(json.dumps(to_tasks([pair], judgments)))

    (found,) = open_source(path)
    taken = {one.annotator_id: one for one in read_export(path, "r1")}

    assert [one.strength for one in found.judgments] == [4, 2, None, None]
    assert [(one.choice, one.strength) for one in found.judgments] == [
        (taken[one.annotator_id].choice, taken[one.annotator_id].strength)
        for one in found.judgments
    ]


def test_who_chose_a_side_and_then_a_tie_is_read_alike_by_both(tmp_path: Path) -> None:
    pair = Pair(pair_id=pair_id("Where?", "Here.", "No."), round="r1", prompt="Where?",
                response_a="Here.", response_b="No.")  # fmt: skip
    one = Judgment.of(pair, annotator_id="ana", kind="human", choice="a", strength=3)
    (task,) = to_tasks([pair], [one])
    (tie,) = to_tasks([pair], [replace(one, choice="tie", strength=None)])
    task["annotations"][0]["result"] += tie["annotations"][0]["result"]
    path = tmp_path / "export.json"
    path.write_text(json.dumps([task]))

    (item,) = open_source(path)
    found = [*item.judgments, *read_export(path, "r1")]

    assert [(one.choice, one.strength) for one in found] == [("tie", None)] * 2

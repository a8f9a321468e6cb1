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
from preferences.records import Choice, Judgment, Prompt, pair_id

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

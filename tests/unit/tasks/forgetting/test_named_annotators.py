"""Which rows name an annotator: those of the person, and none in which the name says else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.forgetting.places import count
from tasks.forgetting.wanted import Wanted

JUDGED = {"judgment_id": "1", "pair_id": "p", "kind": "human", "choice": "b", "revision": 1}


@pytest.mark.parametrize(
    "row",
    [
        {**JUDGED, "annotator_id": "a"},
        {"prompt": "x", "votes": ["a", "tie"], "workers": ["b", "a"]},
        {"data": {"left": "x"}, "annotations": [{"completed_by": {"email": "a"}, "result": []}]},
        {"data": {"left": "x"}, "annotations": [{"completed_by": "a", "result": []}]},
        {"pairs": [{"annotator": "a", "n": 3}]},
        {"numbers": {"weak_annotators": {"value": 2.0, "n": 40, "names": ["b", "a"]}}},
        {"krippendorff alpha": 0.1, "weak annotators": ["a"]},
    ],
)
def test_a_row_that_names_the_annotator_is_meant(row: dict[str, Any]) -> None:
    assert Wanted("annotator", "a").row(row)
    assert not Wanted("annotator", "c").row(row)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("17", {"prompt": "x", "votes": ["a", "tie"], "workers": [3, 17]}),
        ("label-studio-17", {"data": {}, "annotations": [{"completed_by": 17}]}),
        ("label-studio-17", {"data": {}, "annotations": [{"completed_by": {"id": 17}}]}),
        ("17", {"data": {}, "annotations": [{"completed_by": 17}]}),
    ],
)
def test_a_row_that_numbers_its_people_is_meant(
    name: str, row: dict[str, Any], tmp_path: Path
) -> None:
    """As Label Studio exports them; by these names the readers of both halves know them."""
    file = tmp_path / "labels.json"
    file.write_text(json.dumps([row]))
    assert count(file, Wanted("annotator", name), lambda _: None) == 1
    for other in ("1", "label-studio-1", "label-studio-170"):
        assert count(file, Wanted("annotator", other), lambda _: None) == 0


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("a", {**JUDGED, "annotator_id": "bo", "choice": "a"}),
        ("human", {**JUDGED, "annotator_id": "bo"}),
        ("p", {**JUDGED, "annotator_id": "bo"}),
        ("a", {"prompt": "x", "votes": ["a", "tie"], "workers": ["bo", "cy"]}),
        ("1", {**JUDGED, "annotator_id": "bo"}),
        ("40", {"numbers": {"weak_annotators": {"value": 1, "n": 40, "names": ["bo"]}}}),
        ("Jane", {"prompt": "Who wrote Emma?", "response": "Jane"}),
        ("Jane", {"prompt": [{"role": "user", "content": "Jane"}]}),
    ],
)
def test_a_choice_or_a_text_that_reads_like_the_name_is_not(name: str, row: dict[str, Any]) -> None:
    assert not Wanted("annotator", name).row(row)

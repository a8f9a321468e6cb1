"""Label Studio's exports: a judgment of each annotator, and one answer of each."""

import json

import pytest

from preferences.formats.reading import open_source
from preferences.reader import MalformedDataError
from preferences.records import Voted
from tests.label_studio_tasks import studio_task


def test_label_studio_as_it_exports_it(tmp_path):
    task = {
        "id": 1,
        "data": {"prompt": "p", "response_a": "x", "response_b": "y", "pair_id": "1"},
        "annotations": [
            {
                "completed_by": {"id": 7, "email": "a@b.c"},
                "was_cancelled": False,
                "lead_time": 1.5,
                "ground_truth": False,
                "result": [
                    {
                        "from_name": "pref",
                        "to_name": "a,b",
                        "type": "pairwise",
                        "value": {"selected": "right"},
                    }
                ],
            }
        ],
    }
    (tmp_path / "x.json").write_text(json.dumps([task]))
    (item,) = open_source(tmp_path / "x.json")
    assert isinstance(item, Voted)
    assert [(each.annotator_id, each.choice) for each in item.judgments] == [("7", "b")]


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ([(7, "left"), (8, "left"), (7, "right")],
         'annotation 3: annotator "7" says b, and said a before'),
        ([(7, None), (7, "right")], 'annotation 2: annotator "7" says b, and said skip before'),
    ],
)  # fmt: skip
def test_two_answers_of_one_annotator_are_a_malformed_task(tmp_path, answers, wrong):
    tasks = [studio_task(*answers), studio_task((7, "left"))]
    (tmp_path / "x.json").write_text(json.dumps(tasks))

    with pytest.raises(MalformedDataError) as caught:
        list(open_source(tmp_path / "x.json"))
    expected = f"{tmp_path}/x.json item 1: {wrong}; expected one answer of each"
    assert str(caught.value) == expected
    source = open_source(tmp_path / "x.json", skip_malformed=1)
    assert [item.where for item in source] == [f"{tmp_path}/x.json item 2"]
    assert source.aside == [expected]


def test_an_annotator_who_answers_the_same_again_has_one_vote(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps([studio_task((7, "left"), (8, None), (7, "left"))]))
    (item,) = open_source(tmp_path / "x.json")
    assert [(one.annotator_id, one.choice) for one in item.judgments] == [("7", "a"), ("8", "skip")]


def test_annotations_of_nobody_are_of_different_annotators(tmp_path):
    result = [{"value": {"selected": "left"}}, {"value": {"choices": 5}}]
    entries = [{"completed_by": who, "result": result} for who in (None, {"id": None}, 7)]
    data = {"prompt": "p", "response_a": "x", "response_b": "y"}
    (tmp_path / "x.json").write_text(json.dumps([{"data": data, "annotations": entries}]))
    (item,) = open_source(tmp_path / "x.json")
    assert [each.annotator_id for each in item.judgments] == ["annotator 1", "annotator 2", "7"]


def test_one_name_in_two_spellings_of_unicode_is_one_annotator(tmp_path):
    task = studio_task(("Jos\u00e9", "left"), ("Jose\u0301", "left"))
    (tmp_path / "x.json").write_text(json.dumps([task]))
    (item,) = open_source(tmp_path / "x.json")
    assert [each.annotator_id for each in item.judgments] == ["Jos\u00e9"]
    task = studio_task(("Jos\u00e9", "left"), ("Jose\u0301", "right"))
    (tmp_path / "x.json").write_text(json.dumps([task]))
    with pytest.raises(MalformedDataError, match="says b, and said a"):
        list(open_source(tmp_path / "x.json"))

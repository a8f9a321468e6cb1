"""Exports of Label Studio are read; what is none, or no regular file, is refused in one line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from feedback.formats.label_studio import is_export, read_export, to_tasks
from feedback.judgments import Pair, read_judgments
from preferences.records import Judgment, JudgmentError, oriented, pair_id

_SIDES = {"prompt": "p", "left": "a", "right": "b"}


def _task(**annotation: Any) -> bytes:
    result = [{"from_name": "pref", "value": {"selected": "left"}}]
    return json.dumps([{"data": _SIDES, "annotations": [{"result": result} | annotation]}]).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[\n{"data": ', ":2: not JSON"),
        (b"[" * 100_000, ": nested more than 64 levels deep"),
        (b"[" + 5_000 * b"1" + b"]", ": expected a number of fewer digits"),
        (b"[NaN]", ": not JSON .NaN is not a JSON number"),
        (b"[\xff]", ": not UTF-8 at byte 1"),
        (b'["\\ud800"]', ": task 1 has no data"),
        (_task().replace(b'"a"', b'"\\ud800"'), ": contains half a surrogate pair"),
        (_task(lead_time=10**300), "task 1: lead_time is 1"),
        (_task(lead_time=-1), "task 1: lead_time is -1"),
    ],
)
def test_a_file_that_is_no_export_of_label_studio_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "export.json"
    path.write_bytes(content)
    with pytest.raises(JudgmentError, match=message) as refused:
        read_export(path, "r1")
    assert str(refused.value).startswith(str(path))


def test_a_prompt_that_only_begins_like_messages_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    for prompt in ("[" * 100_000, "[" + 5_000 * "1" + "]", "[not messages"):
        path.write_bytes(_task().replace(b'"p"', json.dumps(prompt).encode()))
        (judgment,) = read_export(path, "r1")
        assert judgment.pair_id == pair_id(prompt, "a", "b")


def test_what_somebody_has_skipped_there_is_a_skip(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    for result in ([], [{"from_name": "pref", "value": {"selected": "left"}}]):
        path.write_bytes(_task(was_cancelled=True, result=result))
        assert [one.choice for one in read_export(path, "r1")] == ["skip"]


def test_a_rating_that_is_none_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    for rating, strength in ((True, None), ("2", None), (0, None), (1, 1), (4, 4), (5, None)):
        stars = {"from_name": "strength", "value": {"rating": rating}}
        chosen = {"from_name": "pref", "value": {"selected": "right"}}
        path.write_bytes(_task(result=[chosen, stars]))
        (judgment,) = read_export(path, "r1")
        assert (judgment.choice, judgment.strength) == ("b", strength)


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ({"selected": "left"}, "a"),
        ({"selected": "right"}, "b"),
        ({"choices": ["tie"]}, "tie"),
        ({"choices": ["both_bad"]}, "both_bad"),
    ],
)
def test_controls_of_a_configuration_of_others_are_read_whatever_their_names(
    tmp_path: Path, value: dict[str, Any], choice: str
) -> None:
    path = tmp_path / "export.json"
    remark = {"from_name": "remark", "value": {"text": ["left"]}}
    path.write_bytes(_task(result=[remark, {"from_name": "comparison", "value": value}]))
    assert [one.choice for one in read_export(path, "r1")] == [choice]


def test_of_several_comparisons_ours_counts_and_otherwise_they_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    names = {"helpful": "right", "harmless": "right", "pref": "left"}
    for left_out, choice in ((), "a"), (("pref",), "b"):
        result = [
            {"from_name": name, "value": {"selected": side}}
            for name, side in names.items()
            if name not in left_out
        ]
        path.write_bytes(_task(result=result))
        assert [one.choice for one in read_export(path, "r1")] == [choice]
    tie = {"from_name": "polite", "value": {"choices": ["tie"]}}
    path.write_bytes(_task(result=[tie, {"from_name": "pref", "value": {"selected": "left"}}]))
    assert [one.choice for one in read_export(path, "r1")] == ["a"]
    path.write_bytes(_task(result=[*result, {"from_name": "x", "value": {"selected": "left"}}]))
    with pytest.raises(JudgmentError, match="task 1: left and right are both selected"):
        read_export(path, "r1")


def test_answers_of_which_none_is_understood_are_named_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_bytes(_task(result=[{"from_name": "quality", "value": {"choices": ["A"]}}]))
    with pytest.raises(JudgmentError, match="is better: found quality, expected a pairwise"):
        read_export(path, "r1")
    # An answer that was begun and left, and one that was never begun.
    begun = {"result": [{"from_name": "strength", "value": {"rating": 2}}]}
    (task,) = json.loads(_task())
    task["annotations"] += [begun, {"result": []}]
    path.write_text(json.dumps([task]), encoding="utf-8")
    assert [one.choice for one in read_export(path, "r1")] == ["a"]


def test_messages_go_out_in_letters_that_people_can_read_and_come_back(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "\u4f60\u597d \u0645\u0631\u062d\u0628\u0627 caf\u00e9"}]
    pair = Pair(
        pair_id=pair_id(prompt, "x", "y"), round="r1", prompt=prompt, response_a="x", response_b="y"
    )
    said = Judgment.of(pair, annotator_id="ana", kind="human", choice="b", shown_order="AB")
    tasks = to_tasks([pair], [said])
    assert prompt[0]["content"] in tasks[0]["data"]["prompt"]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    (back,) = read_export(path, "r1")
    assert (back.pair_id, oriented(back, pair).choice) == (pair.pair_id, "b")


@pytest.mark.parametrize("reads", [is_export, lambda path: read_export(path, "r1"), read_judgments])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, reads: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(JudgmentError, match=f"{name}: is no regular file"):
            reads(tmp_path / name)

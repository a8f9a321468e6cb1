"""Files of judgments, Label Studio's among them, are taken, refused or missed."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from feedback.annotators import FileAnnotator, LabelParams, MissingJudgmentsError
from feedback.formats.label_studio import to_tasks
from feedback.judgments import Pair, to_lines
from preferences.records import Judgment, JudgmentError, text_hash
from tests.unit.feedback.gold_pairs import pairs_with, swapped


def judgment(pair: Pair, name: str = "ana", **changes: object) -> Judgment:
    content: dict[str, object] = {
        "annotator_id": name,
        "kind": "human",
        "annotator_version": "g1",
        "choice": "a",
        "shown_order": "AB",
        "answer_a": text_hash(pair.response_a),
    }
    return Judgment.of(pair, **(content | changes))


def from_file(path: Path, judgments: Sequence[Judgment], overlap: int = 1) -> FileAnnotator:
    path.write_text(to_lines([one.to_row() for one in judgments]), encoding="utf-8")
    return FileAnnotator(path, LabelParams(annotators="file", file=str(path), overlap=overlap))


def test_a_file_gives_the_judgments_of_exactly_these_pairs(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 4)
    written = [judgment(pair) for pair in pairs]
    source = from_file(tmp_path / "j.jsonl", written[::-1])
    assert source.judge(pairs) == written


def test_the_line_that_the_documentation_shows_is_a_judgment(tmp_path: Path) -> None:
    """Each of its keys is needed, and no other."""
    (pair,) = pairs_with(1.0, 1)
    text = (Path(__file__).parents[3] / "data/README.md").read_text(encoding="utf-8")
    (line,) = (one for one in text.splitlines() if '"annotator_id": "kim"' in one)
    row = json.loads(line) | {"pair_id": pair.pair_id}
    path = tmp_path / "j.jsonl"
    source = FileAnnotator(path, LabelParams(annotators="file", file=str(path)))
    path.write_text(json.dumps(row), encoding="utf-8")
    (found,) = source.judge([pair])
    assert (found.annotator_id, found.choice, found.shown_order) == ("kim", "a", None)
    for key in row:
        path.write_text(json.dumps({k: v for k, v in row.items() if k != key}), encoding="utf-8")
        with pytest.raises(JudgmentError, match=f"{key} is None"):
            source.judge([pair])


def test_a_file_says_how_many_judgments_are_missing(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 100)
    written = [judgment(pair) for pair in pairs[:63]]
    source = from_file(tmp_path / "j.jsonl", written, overlap=2)
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 137 of 200 judgments") as e:
        source.judge(pairs)
    assert (e.value.missing, e.value.wanted) == (137, 200)


def test_a_judgment_of_an_unknown_pair_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs, strangers = pairs_with(1.0, 2), pairs_with(2.0, 1)
    source = from_file(tmp_path / "j.jsonl", [judgment(pair) for pair in pairs + strangers])
    collected = source.collect(pairs)
    assert [one.judgment_id for one in collected.refused] == [judgment(strangers[0]).judgment_id]
    assert "round r1 does not contain the pair" in collected.refused[0].reason
    assert source.judge(pairs) == [judgment(pair) for pair in pairs]
    assert "refused: round r1 does not contain the pair" in caplog.text


def test_of_very_many_refused_judgments_the_first_have_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs, strangers = pairs_with(1.0, 2), pairs_with(2.0, 1_500)
    source = from_file(tmp_path / "j.jsonl", [judgment(pair) for pair in pairs + strangers])
    assert source.judge(pairs) == [judgment(pair) for pair in pairs]
    lines = caplog.text.splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("1,480 more judgments refused")


def test_labels_of_an_earlier_round_count_for_the_same_content(tmp_path: Path) -> None:
    earlier, now = pairs_with(1.0, 3, key="r1"), pairs_with(1.0, 3, key="r2")
    source = from_file(tmp_path / "j.jsonl", [judgment(pair) for pair in earlier])
    judgments = source.judge([swapped(pair) for pair in now])
    assert [(one.round, one.choice) for one in judgments] == [("r2", "b")] * 3


@pytest.mark.parametrize("first", [0, 1])
def test_what_somebody_said_in_this_round_goes_before_what_they_said_earlier(
    tmp_path: Path, first: int
) -> None:
    earlier, now = (pairs_with(1.0, 1, key=key) for key in ("r1", "r2"))
    said = [judgment(earlier[0], choice="b"), judgment(now[0], choice="a")]
    source = from_file(tmp_path / "j.jsonl", [said[first], said[1 - first]])
    assert source.judge(now) == [said[1]]


def test_the_last_revision_in_a_file_counts(tmp_path: Path) -> None:
    pair = pairs_with(1.0, 1)[0]
    first, second = judgment(pair), judgment(pair, choice="tie", revision=2)
    source = from_file(tmp_path / "j.jsonl", [first, second])
    assert source.judge([pair]) == [second]


def test_judgments_that_contradict_each_other_are_refused_not_chosen_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = pairs_with(1.0, 3)
    turned = [judgment(swapped(pair)) for pair in pairs]
    # Of the second pair the same is said twice, of the third the newer revision differs.
    same = judgment(swapped(pairs[1]), choice="b", shown_order="BA")
    newer = judgment(swapped(pairs[2]), revision=2)
    written = [*map(judgment, pairs), turned[0], same, newer]
    source = from_file(tmp_path / "j.jsonl", written)
    collected = source.collect(pairs)
    assert [one.choice for one in collected.judgments] == ["a", "b"]
    contradicting = [judgment(pairs[0]).judgment_id, turned[0].judgment_id]
    assert [one.judgment_id for one in collected.refused] == contradicting
    assert collected.missing == 1
    with pytest.raises(MissingJudgmentsError, match=r"waits for 1 of 3 .* where 2 were refused"):
        source.judge(pairs)
    assert "refused: ana judges pair" in caplog.text
    assert "differently in another row, expected one" in caplog.text


# --- Files from Label Studio ---------------------------------------------------------------------


def annotation(side: str | None = None, by: object = 7, **changes: object) -> dict[str, object]:
    """As Label Studio 1.23 writes it."""
    result = [] if side is None else [result_of("pref", "pairwise", selected=side)]
    return {
        "completed_by": by,
        "was_cancelled": False,
        "lead_time": 4.25,
        "result": result,
    } | changes


def result_of(name: str, kind: str, **value: object) -> dict[str, object]:
    return {"from_name": name, "to_name": "prompt", "type": kind, "value": value}


def studio(
    path: Path, pairs: Sequence[Pair], *annotations: object, overlap: int = 1
) -> FileAnnotator:
    """Its export with these annotations on each pair; `response_b` stands on the left."""
    data = [
        {"prompt": pair.prompt, "left": pair.response_b, "right": pair.response_a} for pair in pairs
    ]
    tasks = [{"id": n, "data": one, "annotations": list(annotations)} for n, one in enumerate(data)]
    path.write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    return FileAnnotator(path, LabelParams(annotators="file", file=str(path), overlap=overlap))


def test_an_export_from_label_studio_is_taken_as_it_is(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 3)
    strength = result_of("strength", "rating", rating=3)
    given = annotation("left", by={"email": "ana@example.org"})
    given["result"] = [*given["result"], strength]  # type: ignore[misc]
    tie = annotation(by=9, result=[result_of("neither", "choices", choices=["tie"])])
    skip = annotation("right", by=8, was_cancelled=True)

    found = studio(tmp_path / "export.json", pairs, given, tie, skip, overlap=3).judge(pairs)

    assert [(one.annotator_id, one.choice, one.strength, one.shown_order) for one in found[:3]] == [
        ("ana@example.org", "b", 3, "BA"),
        ("label-studio-8", "skip", None, "BA"),
        ("label-studio-9", "tie", None, "BA"),
    ]
    assert {(one.kind, one.annotator_version, one.latency_ms) for one in found} == {
        ("import", "label-studio", 4250)
    }
    assert [one.pair_id for one in found] == [pair.pair_id for pair in pairs for _ in range(3)]


def test_label_studio_gives_back_what_it_was_given(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 20)
    choices = ("a", "b", "tie", "both_bad", "skip")
    written = [judgment(pair, choice=choices[n % 5]) for n, pair in enumerate(pairs)]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(to_tasks(pairs, written)), encoding="utf-8")

    found = FileAnnotator(path, LabelParams(annotators="file", file=str(path))).judge(pairs)

    assert [(one.pair_id, one.choice) for one in found] == [
        (one.pair_id, one.choice) for one in written
    ]


def test_a_project_of_several_rounds_counts_each_for_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pairs_with(1.0, 2, key="r1"), pairs_with(2.0, 2, key="r2")
    written = [judgment(pair) for pair in first + second]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(to_tasks([*first, *second], written)), encoding="utf-8")
    source = FileAnnotator(path, LabelParams(annotators="file", file=str(path)))
    assert len(source.judge(second)) == 2
    assert "refused" not in caplog.text


def test_tasks_without_an_answer_are_missing_judgments(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 4)
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 4 of 4 judgments"):
        studio(tmp_path / "export.json", pairs, annotation()).judge(pairs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{]", r"export\.json:1: not JSON"),
        ('[{"id": 1, "pref": "left"}]', r"export\.json: task 1 has no data; expected .* form JSON"),
        ("[1]", r"export\.json: task 1 has no data"),
        ('[{"data": {"prompt": "p", "left": "l"}}]', r"task 1: data\.right is None"),
        (
            '[{"data": {"prompt": "p", "left": "l", "right": "r"}, "annotations": [3]}]',
            r"task 1: annotations is \[3\], expected a list of objects",
        ),
        (
            '[{"data": {"prompt": "p", "left": "l", "right": "r", "pair_id": "0"}}]',
            r"task 1: the texts do not match pair '0'",
        ),
        (
            '[{"data": {"prompt": "p", "left": "l", "right": "r"}, "annotations": [{"lead_time": '
            '"x", "result": [{"from_name": "pref", "value": {"selected": "left"}}]}]}]',
            r"task 1: lead_time is 'x', expected seconds",
        ),
        (
            '[{"data": {"prompt": "p", "left": "l", "right": "r"}, "annotations": [{"lead_time": '
            '-1, "result": [{"from_name": "pref", "value": {"selected": "left"}}]}]}]',
            r"task 1: lead_time is -1, expected seconds",
        ),
    ],
)
def test_what_is_no_export_is_refused_with_file_and_task(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "export.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JudgmentError, match=message):
        FileAnnotator(path, LabelParams(annotators="file", file=str(path))).judge(
            pairs_with(1.0, 1)
        )


COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


@pytest.mark.parametrize("first", [COMPOSED, DECOMPOSED])
def test_one_name_in_two_spellings_of_unicode_is_one_person(tmp_path: Path, first: str) -> None:
    """As on the labelling page: who saved the file from two machines has one vote."""
    (pair,) = pairs_with(1.0, 1)
    other = DECOMPOSED if first == COMPOSED else COMPOSED
    rows = [judgment(pair, first), judgment(pair, other, choice="b", revision=2)]
    source = from_file(tmp_path / "j.jsonl", rows)
    assert [(one.annotator_id, one.choice) for one in source.judge([pair])] == [(COMPOSED, "b")]
    with pytest.raises(MissingJudgmentsError, match="waits for 1 of 2 judgments"):
        from_file(tmp_path / "j.jsonl", rows, overlap=2).judge([pair])


def test_label_studio_has_one_person_of_a_name_too(tmp_path: Path) -> None:
    pairs = pairs_with(1.0, 1)
    result = [result_of("pref", "pairwise", selected="left")]
    entries = [
        {"completed_by": {"email": f"{name}@b.c"}, "result": result}
        for name in (COMPOSED, DECOMPOSED)
    ]
    (found,) = studio(tmp_path / "l.json", pairs, *entries).judge(pairs)
    assert found.annotator_id == f"{COMPOSED}@b.c"

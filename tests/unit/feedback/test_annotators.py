"""Simulated annotators hold to Bradley-Terry; files of judgments are taken, refused or missed."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from feedback.annotators import FileAnnotator, LabelParams, MissingJudgmentsError, RubricAnnotator
from feedback.formats.label_studio import to_tasks
from feedback.judgments import Pair, to_lines
from preferences.records import Judgment, JudgmentError, pair_id, text_hash

DIFFERENCES = (-3.0, -1.5, -0.5, 0.0, 0.25, 1.0, 2.0, 4.0)


def score(prompt: str, response: str, finished: bool) -> float:
    """The gold score is written into the answer itself, 'gold=2.5 ...'; 3 less if it was cut."""
    assert prompt.startswith("prompt")
    return float(response.split("=")[1].split()[0]) - 3 * (not finished)


def pairs_with(difference: float, count: int, key: str = "r1") -> list[Pair]:
    rows = [(f"prompt {n}", f"gold={difference + 5} a{n}", f"gold=5 b{n}") for n in range(count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round=key, prompt=p, response_a=a, response_b=b)
        for p, a, b in rows
    ]


def swapped(pair: Pair) -> Pair:
    return replace(pair, response_a=pair.response_b, response_b=pair.response_a)


def annotator(seed: int = 0, **params: float | int) -> RubricAnnotator:
    return RubricAnnotator(score, LabelParams(**params), seed=seed, rubric="v1")  # type: ignore[arg-type]


def share(judgments: Sequence[Judgment], **wanted: object) -> float:
    hits = sum(all(getattr(one, k) == v for k, v in wanted.items()) for one in judgments)
    return hits / len(judgments)


@pytest.mark.parametrize("tau", [1.0, 3.0])
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_is_preferred_as_often_as_the_sigmoid_says(difference: float, tau: float) -> None:
    count = 2000
    judgments = annotator(seed=1, tau=tau).judge(pairs_with(difference, count))
    expected = 1 / (1 + math.exp(-difference / tau))
    error = math.sqrt(expected * (1 - expected) / count)
    assert abs(share(judgments, choice="a") - expected) < 3 * error


def test_the_gold_score_of_a_cut_response_is_that_of_a_cut_response() -> None:
    """A lead of 1.5 and a cut that costs 3 are a lag of 1.5."""
    cut = [replace(pair, finished_a=False) for pair in pairs_with(1.5, 2000)]
    expected = [one.choice for one in annotator(seed=1).judge(pairs_with(-1.5, 2000))]
    found = [one.choice for one in annotator(seed=1).judge(cut)]
    # Other texts have other noise, so the shares agree and not each choice.
    assert abs(found.count("a") - expected.count("a")) < 3 * math.sqrt(2 * 2000 * 0.15)
    assert found.count("a") < 600


def test_agreement_with_the_gold_order_is_the_mean_of_the_sigmoids() -> None:
    differences = [0.1 * n for n in range(1, 41)]
    judgments = [one for d in differences for one in annotator(seed=3).judge(pairs_with(d, 100))]
    expected = [1 / (1 + math.exp(-d)) for d in differences]
    variance = sum(p * (1 - p) for p in expected) * 100
    agreed = sum(one.choice == "a" for one in judgments)
    assert abs(agreed - 100 * sum(expected)) < 3 * math.sqrt(variance)


def test_half_of_the_responses_a_stand_on_the_left() -> None:
    judgments = annotator().judge(pairs_with(1.0, 5000))
    assert abs(share(judgments, shown_order="AB") - 0.5) < 3 * math.sqrt(0.25 / 5000)


def test_the_side_says_nothing_about_the_choice() -> None:
    judgments = annotator(tau=2.0).judge(pairs_with(1.0, 5000))
    expected = 1 / (1 + math.exp(-0.5))
    for order in ("AB", "BA"):
        shown = [one for one in judgments if one.shown_order == order]
        error = math.sqrt(expected * (1 - expected) / len(shown))
        assert abs(share(shown, choice="a") - expected) < 3 * error


def test_the_same_response_wins_when_the_responses_trade_places() -> None:
    mirror = {"a": "b", "b": "a", "tie": "tie"}
    pairs = pairs_with(0.5, 500)
    straight = annotator(tau=2.0, tie_band=0.5, flip=0.2).judge(pairs)
    crossed = annotator(tau=2.0, tie_band=0.5, flip=0.2).judge([swapped(pair) for pair in pairs])
    assert [mirror[one.choice] for one in straight] == [one.choice for one in crossed]
    assert [one.strength for one in straight] == [one.strength for one in crossed]


def test_a_changed_subset_changes_only_the_new_pairs() -> None:
    old = pairs_with(0.5, 50)
    new = old[:30] + pairs_with(0.7, 20)
    before = {one.pair_id: one for one in annotator().judge(old)}
    after = {one.pair_id: one for one in annotator().judge(new[::-1])}
    assert all(after[pair.pair_id] == before[pair.pair_id] for pair in old[:30])


def test_the_same_seed_gives_the_same_labels_and_another_seed_others() -> None:
    pairs = pairs_with(0.5, 200)
    assert annotator(seed=1).judge(pairs) == annotator(seed=1).judge(pairs)
    same = sum(
        x.choice == y.choice
        for x, y in zip(annotator(seed=1).judge(pairs), annotator(seed=2).judge(pairs), strict=True)
    )
    assert 80 < same < 160


def test_each_pair_goes_to_as_many_different_annotators_as_overlap_asks() -> None:
    judgments = annotator(simulated=5, overlap=3).judge(pairs_with(0.5, 400))
    assert len(judgments) == 1200
    assert len({(one.pair_id, one.annotator_id) for one in judgments}) == 1200
    for name in ("sim-1", "sim-2", "sim-3", "sim-4", "sim-5"):
        # Binomial(400, 3/5): mean 240, standard deviation 9.8.
        assert abs(sum(one.annotator_id == name for one in judgments) - 240) < 30


def test_two_annotators_of_one_pair_err_independently() -> None:
    judgments = annotator(simulated=2, overlap=2, tau=1.0).judge(pairs_with(1.0, 4000))
    by_pair: dict[str, list[str]] = {}
    for one in judgments:
        by_pair.setdefault(one.pair_id, []).append(one.choice)
    p = 1 / (1 + math.exp(-1.0))
    expected = p * p + (1 - p) * (1 - p)
    agreed = sum(len(set(choices)) == 1 for choices in by_pair.values()) / 4000
    assert abs(agreed - expected) < 3 * math.sqrt(expected * (1 - expected) / 4000)


def test_ties_come_from_the_band_alone() -> None:
    assert share(annotator().judge(pairs_with(0.0, 1000)), choice="tie") == 0
    judgments = annotator(tie_band=1.0).judge(pairs_with(0.0, 4000))
    # |logistic| < 1: 2 * sigmoid(1) - 1.
    expected = 2 / (1 + math.exp(-1.0)) - 1
    error = math.sqrt(expected * (1 - expected) / 4000)
    assert abs(share(judgments, choice="tie") - expected) < 3 * error
    assert all((one.strength is None) == (one.choice == "tie") for one in judgments)


def test_flipped_choices_are_as_many_as_asked() -> None:
    judgments = annotator(tau=1e-6, flip=0.25).judge(pairs_with(1.0, 4000))
    assert abs(share(judgments, choice="b") - 0.25) < 3 * math.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize(
    ("difference", "strength"), [(0.5, 1), (1.5, 2), (2.5, 3), (3.9, 3), (4.5, 4)]
)
def test_a_larger_difference_is_a_stronger_judgment(difference: float, strength: int) -> None:
    judgments = annotator(tau=1e-6).judge(pairs_with(difference, 5))
    assert {(one.choice, one.strength) for one in judgments} == {("a", strength)}


def test_simulated_judgments_hold_no_times() -> None:
    row = annotator().judge(pairs_with(1.0, 1))[0].to_row()
    assert "created_at" not in row
    assert "latency_ms" not in row


def test_the_version_names_everything_that_steers_a_judgment() -> None:
    versions = {
        annotator().version,
        annotator(seed=1).version,
        annotator(tau=2.0).version,
        annotator(flip=0.1).version,
        annotator(tie_band=0.1).version,
        RubricAnnotator(score, LabelParams(), seed=0, rubric="v2").version,
    }
    assert len(versions) == 6


def test_a_prompt_of_messages_is_refused() -> None:
    pair = replace(pairs_with(1.0, 1)[0], prompt=[{"role": "user", "content": "hi"}])
    with pytest.raises(TypeError, match="the rubric scores text prompts"):
        annotator().judge([pair])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tau": 0.0}, r"label\.tau is 0\.0, expected more than 0"),
        ({"overlap": 0}, r"label\.overlap is 0"),
        ({"simulated": 1, "overlap": 2}, r"label\.simulated is 1, expected at least"),
        ({"flip": 1.5}, r"label\.flip is 1\.5"),
        ({"tie_band": -1.0}, r"label\.tie_band is -1\.0"),
        ({"annotators": "file"}, r"label\.file is missing"),
        ({"annotators": "language_model"}, r"label\.language_model is missing"),
        ({"annotators": "reward_model"}, r"label\.reward_model is missing"),
        (
            {"annotators": "reward_model", "reward_model": "m", "overlap": 2},
            r"label\.overlap is 2, expected 1",
        ),
    ],
)
def test_impossible_params_are_refused_by_name(params: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelParams(**params)  # type: ignore[arg-type]


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
    assert [one.pair_id for one in collected.refused] == [strangers[0].pair_id]
    assert "round r1 does not contain the pair" in collected.refused[0].reason
    assert source.judge(pairs) == [judgment(pair) for pair in pairs]
    assert "refused: round r1 does not contain the pair" in caplog.text


def test_labels_of_an_earlier_round_count_for_the_same_content(tmp_path: Path) -> None:
    earlier, now = pairs_with(1.0, 3, key="r1"), pairs_with(1.0, 3, key="r2")
    source = from_file(tmp_path / "j.jsonl", [judgment(pair) for pair in earlier])
    judgments = source.judge([swapped(pair) for pair in now])
    assert [(one.round, one.choice) for one in judgments] == [("r2", "b")] * 3


def test_the_last_revision_in_a_file_counts(tmp_path: Path) -> None:
    pair = pairs_with(1.0, 1)[0]
    first, second = judgment(pair), judgment(pair, choice="tie", revision=2)
    source = from_file(tmp_path / "j.jsonl", [first, second])
    assert source.judge([pair]) == [second]


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

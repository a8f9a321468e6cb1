"""Simulated annotators hold to Bradley-Terry, and their parameters are refused by name."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from feedback.annotators import LabelParams, RubricAnnotator
from preferences.records import Judgment
from tests.unit.feedback.gold_pairs import pairs_with, swapped

DIFFERENCES = (-3.0, -1.5, -0.5, 0.0, 0.25, 1.0, 2.0, 4.0)


def score(prompt: str, response: str, finished: bool) -> float:
    """The gold score is written into the answer itself, 'gold=2.5 ...'; 3 less if it was cut."""
    assert prompt.startswith("prompt")
    return float(response.split("=")[1].split()[0]) - 3 * (not finished)


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

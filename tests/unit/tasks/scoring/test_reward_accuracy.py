"""A reward model's metrics, on a model whose scores are known by hand."""

import csv
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from data.support_desk.rubric import score_response
from preferences.records import Preference
from rlhf.classifiers import Classifier
from rlhf.ensembles import join
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from tasks.running.progress import Progress
from tasks.scoring.reward_accuracy import (
    asked,
    gold_accuracy,
    label_gaps,
    measure,
    most_tokens,
    passes,
    write_reliability,
)
from tests import tiny
from tests.tiny import COMPUTE, tokenizer


@pytest.fixture(scope="module")
def scorer():
    model = tiny.reward_model(vocabulary=len(tokenizer()))
    model.set_normaliser(0.5, 3.0)
    return model, Encoder(tokenizer())


def preference(chosen: str, rejected: str, **more) -> Preference:
    return Preference(
        pair_id="x", prompt_id="p", prompt="What?", chosen=chosen, rejected=rejected, **more
    )


ANSWERS = ["It left.", "A new lamp is on its way.", "I am sorry.", "comes", "Sam and Kim", "no"]


def measured(
    model: RewardModel, encoder: Encoder, fresh: list[Preference], heldout: list[Preference]
) -> tuple[dict[str, Any], list[float]]:
    progress = Progress("reward", passes(model), "passes")
    return measure(model, encoder, fresh, heldout, COMPUTE, progress=progress)


def ordered(scorer) -> list[str]:
    """The answers from the lowest score to the highest."""
    pairs = [preference(answer, ANSWERS[0]) for answer in ANSWERS]
    gaps = label_gaps(*scorer, pairs, COMPUTE)
    return [answer for _, answer in sorted(zip(gaps, ANSWERS, strict=True))]


def test_a_pair_is_asked_about_where_both_sides_are_short_enough(
    scorer, capsys: pytest.CaptureFixture[str]
):
    model, encoder = scorer
    short, long = "no", "A new lamp is on its way."
    rows = [preference(short, short), preference(long, short), preference(short, long)]
    most = len(encoder.encode("What?", long, finished=True))
    assert asked(model, encoder, rows, most) == rows
    assert capsys.readouterr().err == ""
    assert asked(model, encoder, rows, most - 1) == rows[:1]
    assert "2 of 3 pairs to ask the reward model about left out (67 %)" in capsys.readouterr().err


def test_a_model_is_asked_about_no_row_that_is_longer_than_it_can_read():
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_labels": 1}
    bert = BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=30)
    gpt2 = GPT2Config(**sizes, n_layer=1, n_positions=30, bos_token_id=0, eos_token_id=0)
    theirs = Classifier(BertForSequenceClassification(bert))
    ours = RewardModel(GPT2ForSequenceClassification(gpt2))
    for model in (theirs, ours, Classifier(ours.classifier)):
        assert most_tokens(model, 192) == 30
        assert most_tokens(model, 8) == 8
    # Rotary positions have no end.
    assert most_tokens(tiny.reward_model(), 10_000) == 10_000
    encoder = Encoder(tokenizer())
    short, long = preference("no", "no"), preference("no " * 40, "no")
    assert asked(theirs, encoder, [short, long], 192) == [short]


def test_s48_gaps_are_of_raw_scores_whatever_the_normaliser(scorer, assert_close):
    (gap,) = label_gaps(*scorer, [preference(ANSWERS[0], ANSWERS[1])], COMPUTE)
    model = tiny.reward_model(vocabulary=len(tokenizer()))
    (raw,) = label_gaps(model, scorer[1], [preference(ANSWERS[0], ANSWERS[1])], COMPUTE)
    assert raw != 0
    assert_close(gap, raw, rtol=1e-4, atol=1e-6)


def test_s48_accuracy_stands_with_its_interval_beside_longer_wins(scorer):
    low, *_, high = ordered(scorer)
    right, wrong = preference(high, low, round="r1"), preference(low, high, round="r1")
    metrics, gaps = measured(*scorer, [right], [right, right, right, wrong])
    labels = metrics["labels"]
    assert (labels["accuracy"]["mean"], labels["accuracy"]["n"]) == (0.75, 4)
    assert labels["accuracy"]["low"] < 0.75 < labels["accuracy"]["high"]
    longer = 0.75 if len(high) > len(low) else 0.25
    assert (labels["longer_wins"]["mean"], labels["longer_wins"]["n"]) == (longer, 4)
    assert metrics["heldout_accuracy"] == 0.75
    assert len(gaps) == 4


def test_s43_ties_are_measured_nowhere(scorer):
    low, *_, high = ordered(scorer)
    tie = preference(low, high, label=0.5)
    metrics, gaps = measured(*scorer, [tie], [tie])
    assert gaps == []
    assert metrics["heldout_accuracy"] is metrics["longer_wins"] is metrics["ece"] is None
    assert gold_accuracy(*scorer, [tie], COMPUTE) is None
    with_one, _ = measured(*scorer, [], [tie, preference(high, low)])
    assert with_one["labels"]["accuracy"]["n"] == 1


def test_s48_accuracy_by_how_sure_the_annotators_were(scorer):
    low, *_, high = ordered(scorer)
    rows = [preference(high, low, margin=1.0)] * 3
    rows += [preference(high, low, margin=1 / 3), preference(low, high, margin=1 / 3)]
    labels = measured(*scorer, [], rows)[0]["labels"]
    assert (labels["strength_4"]["mean"], labels["strength_4"]["n"]) == (1.0, 3)
    assert (labels["strength_2"]["mean"], labels["strength_2"]["n"]) == (0.5, 2)
    plain = measured(*scorer, [], [preference(high, low)] * 2)[0]["labels"]
    assert set(plain) == {"accuracy", "longer_wins"}
    # Differences of scores are no strengths, also where one is small.
    rows += [preference(high, low, margin=margin, source="scores") for margin in (2.75, 0.5, 1.0)]
    graded = {
        name: each["n"]
        for name, each in measured(*scorer, [], rows)[0]["labels"].items()
        if name.startswith("strength_")
    }
    assert graded == {"strength_2": 2, "strength_4": 3}


def test_s48_the_reliability_plot_is_a_table_of_confidence_and_accuracy(tmp_path):
    rows = [replace(preference("a", "b"), prompt_id=name) for name in "pqr"]
    tie = preference("a", "b", label=0.5)
    gaps = [math.log(19), -math.log(19), math.log(3)]
    write_reliability(tmp_path / "r.csv", gaps, [tie, *rows])
    with (tmp_path / "r.csv").open() as file:
        sure, surer = list(csv.DictReader(file))
    assert (float(sure["confidence"]), sure["accuracy"], sure["pairs"]) == (0.75, "1.000000", "1")
    assert (float(surer["confidence"]), surer["accuracy"], surer["pairs"]) == (
        0.95,
        "0.500000",
        "2",
    )
    # Wilson 1927 for 1 of 2, worked out by hand.
    assert (float(surer["low"]), float(surer["high"])) == pytest.approx((0.0945, 0.9055), abs=1e-4)


PROMPT = "Hello, this is Clara. Can you refund me? My red lamp is broken. It was order 89."


def test_s48_gold_counts_a_response_that_was_cut_as_unfinished(scorer):
    """Whatever the model says, gold turns round when the better response turns out to be cut."""
    ideal = "I have sent you a refund for the red lamp from order 89."
    good = "I have sent you a refund for order 89."
    row = {"pair_id": "x", "prompt_id": "p", "prompt": PROMPT, "chosen": ideal, "rejected": good}
    whole, cut = Preference(**row), Preference(**row, chosen_finished=False)
    gold = [
        score_response(PROMPT, ideal) - score_response(PROMPT, good),
        score_response(PROMPT, ideal, finished=False) - score_response(PROMPT, good),
    ]
    assert gold[0] * gold[1] < 0
    for preference_, difference in ((whole, gold[0]), (cut, gold[1])):
        (gap,) = label_gaps(*scorer, [preference_], COMPUTE)
        accuracy = gold_accuracy(*scorer, [preference_], COMPUTE)
        assert accuracy["mean"] == float(gap * difference > 0)
        # The chosen one is the longer one, labelled so in both cases.
        assert measured(*scorer, [preference_], [])[0]["longer_wins"] == float(difference > 0)


@pytest.mark.parametrize("members", [1, 2])
def test_every_pass_is_counted_and_the_last_one_shown(members, scorer, capsys):
    """Of an ensemble its disagreement, too."""
    model = join([tiny.reward_model(n, vocabulary=len(tokenizer())) for n in range(members)], 1.0)
    measured(model, scorer[1], [], [preference("a", "b")])
    count = 2 + members
    assert f"reward       {count}/{count} passes" in capsys.readouterr().err


def test_pairs_of_earlier_rounds_are_measured_without_those_of_the_round(scorer):
    low, *_, high = ordered(scorer)
    fresh = [preference(high, low, round="r2"), preference(high, low, round="r2")]
    older = [preference(low, high, round=key) for key in ("r1", "", "")]
    metrics, _ = measured(*scorer, fresh, fresh + older)
    found = [metrics[name] for name in ("accuracy_after", "accuracy_older")]
    assert [(each["mean"], each["n"]) for each in found] == [(1.0, 2), (0.0, 3)]
    assert measured(*scorer, fresh, fresh)[0]["accuracy_older"] is None


@torch.no_grad()
def test_members_disagree_by_their_deviation_on_the_chosen_responses(scorer, assert_close):
    """Of two members it is half of the distance between their normalised scores."""
    members = [tiny.reward_model(seed, vocabulary=len(tokenizer())) for seed in (1, 2)]
    members[1].set_normaliser(0.3, 2.0)
    rows = [preference(one, other) for one, other in itertools.pairwise(ANSWERS)]
    halves = []
    for row in rows:
        ids = torch.tensor([scorer[1].encode(row.prompt, row.chosen, finished=True)])
        one, other = (float(each(ids, torch.ones_like(ids).bool())) for each in members)
        halves.append(abs(one - other) / 2)
    metrics, _ = measured(join(members, 1.0), scorer[1], [], rows)
    assert_close(metrics["disagreement"], sum(halves) / len(halves), rtol=1e-4, atol=0)


def test_pairs_of_one_prompt_tell_less_than_as_many_prompts(scorer):
    low, *_, high = ordered(scorer)
    right, wrong = preference(high, low), preference(low, high)
    rows = [
        replace(right if prompt % 4 else wrong, prompt_id=str(prompt))
        for prompt in range(20)
        for _ in range(6)
    ]
    ranked = measured(*scorer, rows, rows)[0]
    alone = [replace(row, prompt_id=str(number)) for number, row in enumerate(rows)]
    apart = measured(*scorer, alone, alone)[0]
    for found in (ranked["accuracy_after"], ranked["labels"]["accuracy"]):
        assert (found["mean"], found["n"]) == (0.75, 120)
    widths = [
        each["labels"]["accuracy"]["high"] - each["labels"]["accuracy"]["low"]
        for each in (ranked, apart)
    ]
    # 19 independent cases less Student's t, for 120: 2.5 times as wide, a little less by Wilson.
    assert 2.2 < widths[0] / widths[1] < 2.7


def test_a_point_of_the_reliability_plot_knows_that_pairs_share_prompts(tmp_path):
    """Five prompts of twenty in the wrong order, six pairs each, all in one bin."""

    def written(prompts: list[str]) -> float:
        gaps = [math.log(3) if number // 6 % 4 else -math.log(3) for number in range(120)]
        rows = [replace(preference("a", "b"), prompt_id=prompt) for prompt in prompts]
        write_reliability(tmp_path / "r.csv", gaps, rows)
        with (tmp_path / "r.csv").open() as file:
            (found,) = csv.DictReader(file)
        assert (found["accuracy"], found["pairs"]) == ("0.750000", "120")
        return float(found["high"]) - float(found["low"])

    ranked = written([str(number // 6) for number in range(120)])
    assert 2.2 < ranked / written([str(number) for number in range(120)]) < 2.7

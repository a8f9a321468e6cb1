"""What is found in one's own rows before the first stage: leaks, too few prompts, their form."""

import logging
from pathlib import Path
from typing import Any

import pytest

from preferences.reader import read_rows
from preferences.schemas import PROMPTS
from tasks.own_data.preflight import check_inputs
from tasks.own_data.rows import own_split
from tasks.params.loading import load_params
from tests.integration.own_place import FILES, Place, asked_in, pairs, write_rows
from tests.word_models import write_chat_model


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_rubric_cannot_judge_own_prompts(place: Place):
    place.values["label"] = {"annotators": "rubric"}

    (found,) = place.preflight()

    assert found.startswith("label.annotators: rubric, which covers the support desk only")
    assert "own/prompts.jsonl asks" in found


def test_limits_that_leave_too_few_prompts_are_reported_with_what_the_prompts_need(place: Place):
    """A prompt of two words is four tokens: the template puts one before and one behind."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    for section in ("sample", "ppo", "evaluate"):
        place.values[section]["max_prompt_tokens"] = 4
    check_inputs(load_params(place.save()), place.root)
    place.values["ppo"]["max_prompt_tokens"] = 3
    heldout = asked_in(place, "heldout")
    longer = [
        {"prompt_id": f"p{n}", "prompt": f"w{n} w{n // 2} w1"}
        for n in range(50)
        if f"w{n} w{n // 2}" != heldout[0]
    ]
    kept = [*longer, {"prompt_id": "p", "prompt": heldout[0]}]
    write_rows(place.root / "own/prompts.jsonl", kept)

    found = place.preflight()

    behind = "; raise it, or shorten prompts"
    limit = "max_prompt_tokens: {} tokens of model, but of the {} prompts {}"
    none = "none has as few, expected {} or more (the next has 5)"
    one = "only 1 has as few, expected 2 or more (the next has 5)"
    assert found == [
        "sample." + limit.format(4, "train", none.format(1)) + behind,
        "ppo." + limit.format(3, "train", none.format(1)) + behind,
        "evaluate." + limit.format(4, "heldout", one) + behind,
        "evaluate." + limit.format(4, "test", none.format(2)) + behind,
    ]


@pytest.mark.parametrize(("longer", "noted"), [(2, False), (3, True)])
def test_pairs_that_are_too_long_for_reward_training_are_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture, longer: int, noted: bool
):
    """A prompt of two words is four tokens, as above; behind a response comes the end."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    place.values["reward"]["max_tokens"] = 4 + 3 + 1
    own = [
        {"prompt": f"w58 w{n}", "chosen": "w1" + " w2" * (3 if n < longer else 2), "rejected": "w2"}
        for n in range(20)
    ]
    write_rows(place.root / "own/pairs.jsonl", own)
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]

    with caplog.at_level(logging.WARNING):
        check_inputs(load_params(place.save()), place.root)

    what = (
        f"prepare.sources.0: {longer} of the 20 pairs looked at have a side of more than 8 tokens "
        "(reward.max_tokens) and are left out; the longest has 9"
    )
    assert (what in caplog.text) == noted


def test_more_pairs_than_training_prompts_are_reported(place: Place):
    train = len(asked_in(place, "train"))
    place.values["sample"]["pairs"] = train + 1

    (found,) = place.preflight()

    assert found.startswith(f"sample.pairs: {train + 1}, but only {train} of the 50 prompts")


def test_one_prompt_of_a_split_is_too_few_to_evaluate_on(place: Place):
    rows = read_rows(place.root / "own/prompts.jsonl", PROMPTS)
    left = {split: [row for row in rows if own_split(row["prompt"], FILES) == split]
            for split in ("train", "heldout", "test")}  # fmt: skip
    kept = [*left["train"], *left["heldout"], left["test"][0]]
    write_rows(place.root / "own/prompts.jsonl", kept)

    (found,) = place.preflight()

    only = f"only 1 of the {len(kept)} prompts falls into split test, expected 2 or more"
    assert found.startswith(f"prepare.files.prompts: own/prompts.jsonl: {only}")

    code, err = place.run("prepare")
    assert code == 2
    assert "own/prompts.jsonl: only 1 of the prompts falls into split test, expected 2" in err


def test_a_prompt_twice_is_one_prompt_to_evaluate_on(
    place: Place, caplog: pytest.LogCaptureFixture
):
    rows = read_rows(place.root / "own/prompts.jsonl", PROMPTS)
    left = {split: [row for row in rows if own_split(row["prompt"], FILES) == split]
            for split in ("train", "heldout", "test")}  # fmt: skip
    alone = left["test"][0]
    kept = [*left["train"], *left["heldout"], alone]
    again = {"prompt": str(alone["prompt"][0]["content"]).upper()}
    write_rows(place.root / "own/prompts.jsonl", [*kept, again])

    (found,) = place.preflight()

    only = f"only 1 of the {len(kept)} prompts falls into split test, expected 2 or more"
    assert found.startswith(f"prepare.files.prompts: own/prompts.jsonl: {only}")
    place.values["prepare"]["files"]["test_fraction"] = 0.3
    with caplog.at_level(logging.INFO):
        check_inputs(load_params(place.save()), place.root)
    repeated = f"prepare.files.prompts: 1 of {len(kept) + 1} prompts repeat others and are left out"
    assert repeated in caplog.text


def test_prompts_that_have_preferences_are_not_labelled_again(place: Place):
    texts = [f"w{n} w{n // 2}" for n in range(50)]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": text} for text in texts])
    train = [text for text in texts if own_split(text, FILES) == "train"]
    write_rows(place.root / "own/pairs.jsonl", pairs(train[:-2]))
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]
    place.values["sample"] |= {"pairs": 3, "against_sft": 1.0}

    (found,) = place.preflight()

    assert found.startswith(f"sample.pairs: 3, but only 2 of the {len(train)} prompts for training")
    for change in ({"sample": {"pairs": 2}}, {"label": {"annotators": "none"}}):
        before = dict(place.values)
        place.values = {key: {**value, **change.get(key, {})} if key in change else value
                        for key, value in before.items()}  # fmt: skip
        check_inputs(load_params(place.save()), place.root)
        place.values = before


def test_pairs_on_prompts_that_policies_are_evaluated_on_are_reported(
    place: Place, caplog: pytest.LogCaptureFixture
):
    # Whatever side the pairs' own hash puts them on, some of these are for training.
    leaking = [*asked_in(place, "test"), *asked_in(place, "heldout")]
    write_rows(place.root / "own/pairs.jsonl", pairs([*leaking, "w58 w59", "w57 w58"]))
    place.values["prepare"] |= {
        "sources": [{"path": "own/pairs.jsonl"}],
        "heldout_preferences": 0.0,
    }
    what = f"{len(leaking)} of {len(leaking) + 2} pairs are for training and have prompts"

    (found,) = place.preflight()

    assert found.startswith(f"prepare.sources.0: {what}")
    assert "set validate.severities.evaluation_leaks to quarantine" in found

    place.values["validate"]["severities"] = {"evaluation_leaks": "quarantine"}
    with caplog.at_level(logging.WARNING):
        check_inputs(load_params(place.save()), place.root)
    assert f"prepare.sources.0: {what}" in caplog.text


def test_a_prompt_on_both_sides_of_own_preferences_is_reported(place: Place):
    row = {
        "pair_id": "0" * 16, "prompt_id": "p", "prompt": "w58 w58", "chosen": "w1",
        "rejected": "w2", "margin": 0.0, "weight": 1.0, "source": "human", "round": "",
    }  # fmt: skip
    rows = [{**row, "split": "train"}, {**row, "prompt": " W58  w58", "split": "heldout"}]
    write_rows(place.root / "own/preferences.jsonl", rows)
    place.values["prepare"]["files"]["preferences"] = "own/preferences.jsonl"

    (found,) = place.preflight()

    assert found.startswith("prepare.files.preferences: 1 prompts are on the train side and on")


def test_demonstrations_of_evaluated_prompts_are_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
):
    outside = len(asked_in(place, "test")) + len(asked_in(place, "heldout"))
    with caplog.at_level(logging.WARNING):
        check_inputs(load_params(place.save()), place.root)
    assert f"{outside} of 50 demonstrations answer prompts that policies are eval" in caplog.text
    # The demonstrations answer the prompts in their order.
    splits = [
        own_split(row["prompt"], FILES)
        for row in read_rows(place.root / "own/prompts.jsonl", PROMPTS)
    ]
    first = next(number for number, split in enumerate(splits, start=1) if split != "train")
    assert f"comparison (rows {first}{',' if outside > 1 else ')'}" in caplog.text


def test_conversations_in_one_text_are_a_warning_even_beside_a_problem(
    place: Place, caplog: pytest.LogCaptureFixture
):
    said = "\n\nHuman: w1\n\nAssistant: w2\n\nHuman: w{}\n\nAssistant:"
    texts = [said.format(n) for n in range(50)]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": text} for text in texts])
    answered = [{"prompt": text, "response": "w3"} for text in [*texts[:7], "Human after all: w4"]]
    write_rows(place.root / "own/demonstrations.jsonl", answered)
    hh = [{"chosen": f"{text} w1", "rejected": f"{text} w2"} for text in texts[:4]]
    write_rows(place.root / "own/pairs.jsonl", hh)
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]
    place.values["validate"]["severities"] = {"evaluation_leaks": "quarantine"}
    place.values["sample"]["pairs"] = 1000

    with caplog.at_level(logging.WARNING):
        (problem,) = place.preflight()

    assert problem.startswith("sample.pairs: ")
    for key, share in (("files.prompts", "50 of 50"), ("sources.0", "4 of 4")):
        assert f"prepare.{key}: {share} prompts are conversations in one text" in caplog.text
    assert "prepare.files.demonstrations: 7 of 8 prompts are conversations in one" in caplog.text


def test_missing_scores_in_a_source_are_reported_with_their_line(place: Place):
    whole = {"prompt": "w1", "responses": ["w1", "w2"], "scores": [1.0, 2.0]}
    lacking = {"prompt": "w2", "responses": ["w1", "w2"]}
    write_rows(place.root / "own/scored.jsonl", [whole, lacking])
    place.values["prepare"]["sources"] = [{"path": "own/scored.jsonl", "format": "scored"}]

    found = place.preflight()

    assert any(
        line.startswith("prepare.sources.0: own/scored.jsonl:2:") and "scores" in line
        for line in found
    )


@pytest.mark.parametrize(
    ("reward", "best", "noted"),
    [({}, 9.5, True), ({}, 2.0, False), ({"margins": False}, 9.5, False)],
)
def test_margins_in_the_units_of_scores_are_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture, reward: dict[str, Any], best: float, noted: bool
):
    """Graded labels are 0 to 1; scores of 1 to 10 ask the reward model for gaps of up to 9."""
    scored = [
        {"prompt": text, "responses": ["w1", "w2"], "scores": [2.5, best] if n else [1.0, 2.0]}
        for n, text in enumerate(asked_in(place, "train")[:4])
    ]
    write_rows(place.root / "own/scored.jsonl", scored)
    place.values["prepare"]["sources"] = [{"path": "own/scored.jsonl"}]
    place.values["reward"] |= reward

    with caplog.at_level(logging.WARNING):
        check_inputs(load_params(place.save()), place.root)

    what = "prepare.sources.0: 3 of 4 pairs have margins above 1 (up to 7), as from scores"
    assert (what in caplog.text) == noted


def test_pairs_that_leak_beside_a_damaged_allow_list_are_no_traceback(place: Place):
    """Whether a leak blocks depends on the list."""
    texts = [f"w{n} w{n // 2}" for n in range(50)]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": text} for text in texts])
    evaluated = [text for text in texts if own_split(text, FILES) == "heldout"]
    write_rows(place.root / "own/pairs.jsonl", pairs(evaluated))
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]
    place.values["prepare"]["heldout_preferences"] = 0.01
    (place.root / "data").mkdir()
    (place.root / "data/allowed.jsonl").write_text("nothing\n")

    (found,) = place.preflight()

    assert found.startswith("validate.severities: data/allowed.jsonl:1")


def test_two_answers_of_one_annotator_are_reported_with_file_and_task(place: Place):
    sides = ("left", "right")
    annotations = [{"completed_by": 7, "result": [{"value": {"selected": s}}]} for s in sides]
    data = {"prompt": "w9", "response_a": "w1", "response_b": "w2"}
    write_rows(place.root / "own/studio.jsonl", [{"data": data, "annotations": annotations}])
    place.values["prepare"]["sources"] = [{"path": "own/studio.jsonl"}]

    (found,) = place.preflight()

    assert found.startswith('prepare.sources.0: own/studio.jsonl:1: annotation 2: annotator "7"')

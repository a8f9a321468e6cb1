"""What is found before the first stage, by `make repro` as by the flow."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from preferences.reader import read_rows
from preferences.schemas import PROMPTS
from tasks.own_data.preflight import check_inputs
from tasks.own_data.rows import own_split
from tasks.params.loading import load_params
from tasks.params.prepare import FilesParams
from tests.integration.own_place import ROOT, Place, write_rows
from tests.word_models import WORDS, write_chat_model

FILES = FilesParams(prompts="p", demonstrations="d")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def asked_in(place: Place, split: str) -> list[str]:
    """What the prompts of a split ask, as plain text."""
    rows = read_rows(place.root / "own/prompts.jsonl", PROMPTS)
    prompts = [row["prompt"] for row in rows if own_split(row["prompt"], FILES) == split]
    return [str(messages[0]["content"]) for messages in prompts]


def pairs(prompts: list[str]) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "chosen": "w1", "rejected": "w2"} for prompt in prompts]


def write_reward_model(folder: Path, **config: float) -> None:
    """A one-label classifier of another's making, or ours with `score_std`."""
    write_chat_model(folder)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=1, num_labels=1, **config,
    )  # fmt: skip
    LlamaForSequenceClassification(shape).save_pretrained(folder)


def test_the_rubric_cannot_judge_own_prompts(place: Place):
    place.values["label"] = {"annotators": "rubric"}

    (found,) = place.preflight()

    assert found.startswith("label.annotators: rubric, which covers the support desk only")
    assert "own/prompts.jsonl asks" in found


def test_more_pairs_than_training_prompts_are_reported(place: Place):
    train = len(asked_in(place, "train"))
    place.values["sample"]["pairs"] = train + 1

    (found,) = place.preflight()

    assert found.startswith(f"sample.pairs: {train + 1}, but only {train} of the 50 prompts")


def test_prompts_that_have_preferences_are_not_labelled_again(place: Place):
    texts = [f"w{n} w{n // 2}" for n in range(50)]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": text} for text in texts])
    train = [text for text in texts if own_split(text, FILES) == "train"]
    write_rows(place.root / "own/pairs.jsonl", pairs(train[:-2]))
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]
    place.values["sample"]["pairs"] = 3

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


def test_an_adapter_is_no_base_model(place: Place):
    write_chat_model(place.root / "model")
    (place.root / "model/config.json").unlink()
    (place.root / "model/model.safetensors").rename(place.root / "model/adapter_model.safetensors")
    (place.root / "model/adapter_config.json").write_text('{"peft_type": "LORA"}')
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert "holds an adapter (adapter_config.json)" in found
    assert "merge" in found


def test_a_classifier_that_others_have_trained_may_annotate(place: Place):
    """It has no normaliser of ours, and needs none to say which of two scores is higher."""
    place.values["label"] = {"annotators": "reward_model", "reward_model": "model"}
    for normaliser in ({}, {"score_std": 1.0, "score_mean": 0.0}):
        write_reward_model(place.root / "model", **normaliser)
        check_inputs(load_params(place.save()), place.root)


def test_a_value_model_cannot_start_from_a_reward_model_of_other_tokens(place: Place):
    """Found by `ppo` alone, after SFT and the reward model, it would cost hours."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    place.values["reward"] = {"model": "judge"}
    place.values["ppo"] |= {"value_model": "separate", "value_init": "reward"}
    write_reward_model(place.root / "judge")
    check_inputs(load_params(place.save()), place.root)

    text = (place.root / "judge/tokenizer.json").read_text()
    (place.root / "judge/tokenizer.json").write_text(text.replace('"w3"', '"v3"'))
    (found,) = place.preflight()
    assert "ppo.value_init: reward, but judge (reward.model) has a tokenizer of its own" in found

    place.values["ppo"]["value_init"] = "zero"
    check_inputs(load_params(place.save()), place.root)


def test_what_the_pipeline_writes_is_not_what_it_reads(place: Place):
    write_reward_model(place.root / "models/rounds/r1/reward", score_std=1.0, score_mean=0.0)
    place.values["label"] = {
        "annotators": "reward_model",
        "reward_model": "models/rounds/r1/reward",
    }

    (found,) = place.preflight()

    assert found.startswith(
        "label.reward_model: models/rounds/r1/reward: overlaps with models/rounds"
    )


def test_a_judgments_file_may_still_come(place: Place):
    place.values["label"] = {"annotators": "file", "file": "own/judgments.jsonl"}
    check_inputs(load_params(place.save()), place.root)


REPRO = [sys.executable, "-m", "tasks.repro"]


def repro(place: Place, **environment: str) -> tuple[int, list[str], float]:
    """Exit code, stderr without the file's name, seconds."""
    path = place.save()
    (place.root / "dvc.yaml").write_text("stages: {}\n")
    started = time.monotonic()
    done = subprocess.run(
        REPRO,
        cwd=place.root,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
    return done.returncode, lines, time.monotonic() - started


def test_repro_tells_all_problems_at_once_with_exit_2(place: Place):
    write_rows(place.root / "own/bad.jsonl", [{"prompt": "p", "rejected": "b"}])
    place.values["base"] |= {"model": "org/model", "revision": "0" * 40}
    place.values["label"] = {"annotators": "rubric"}
    place.values["prepare"]["sources"] = [{"path": "own/bad.jsonl", "format": "trl"}]

    code, lines, seconds = repro(place, HF_HUB_OFFLINE="1", HF_HOME=str(place.root / ".work"))

    assert code == 2
    note, *problems = lines
    assert note.startswith("prepare.files.demonstrations: ")
    assert [line.partition(": ")[0] for line in problems] == [
        "prepare.sources.0", "base.model", "label.annotators",
    ]  # fmt: skip
    assert "not in Hugging Face's cache" in problems[1]
    assert "hf download org/model --revision 000" in problems[1]
    assert seconds < 15
    assert place.made() == ["dvc.yaml"]


def test_repro_names_the_folder_that_a_misspelt_one_may_mean(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "modle"

    code, lines, _ = repro(place)

    assert code == 2
    assert lines == [
        "base.model: modle: no such model folder; did you mean model?; of a model of the hub, "
        "name base.revision"
    ]


def write_large_model(folder: Path) -> None:
    """Llama of 23 million weights, more than is taken for a model from scratch."""
    write_chat_model(folder)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=1024, intermediate_size=6000, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)


def test_the_embedded_models_rates_are_refused_for_a_large_model(place: Place):
    write_large_model(place.root / "model")
    place.values["base"]["model"] = "model"
    problem = (
        "base.model: model: 23 million parameters, but sft.optimiser, reward.optimiser, "
        "ppo.optimiser, ppo.value_optimiser are those of the embedded model"
    )

    (found,) = place.preflight()

    assert found.startswith(problem)
    assert "PRESET=smollm2-135m" in found


@pytest.mark.long
def test_own_rates_for_a_large_model_pass(place: Place):
    write_large_model(place.root / "model")
    place.values["base"]["model"] = "model"
    for section, key in (
        ("sft", "optimiser"), ("reward", "optimiser"), ("ppo", "optimiser"),
        ("ppo", "value_optimiser"),
    ):  # fmt: skip
        place.values[section][key] = {"name": "adamw", "lr": 2e-5}

    check_inputs(load_params(place.save()), place.root)
    assert place.run("prepare")[0] == 0
    assert place.run("base") == (0, "")


@pytest.mark.long
def test_base_refuses_the_embedded_models_rates_for_a_large_model_too(place: Place):
    """A bare `dvc repro` has no preflight."""
    write_large_model(place.root / "model")
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert "base.model model: 23 million parameters, but sft.optimiser, reward.optimiser" in err
    assert "make repro PRESET=smollm2-135m" in err
    assert "base" not in {path.name for path in (place.root / "models").glob("*")}


@pytest.mark.parametrize("sign", ["{", "}", "?", "$b"])
def test_a_checkout_at_a_path_that_a_library_reads_otherwise_is_refused(tmp_path: Path, sign: str):
    odd = tmp_path / f"a{sign}"
    odd.mkdir()

    (found,) = Place(odd).preflight()

    assert found.startswith(f"{odd}: ")
    assert found.endswith(f"move the checkout to a path without {sign}")


def test_a_dollar_that_begins_no_name_is_a_sign_like_others(tmp_path: Path):
    odd = tmp_path / "a$1, b"
    odd.mkdir()
    place = Place(odd)

    check_inputs(load_params(place.save()), odd)

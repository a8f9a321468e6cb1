"""What is found before the first stage of reward models: of others, or in a stage's place."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from tasks.own_data import model_checks
from tasks.own_data.preflight import check_inputs
from tasks.params.loading import load_params
from tests.integration.own_place import Place
from tests.word_models import WORDS, write_chat_model


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def write_reward_model(folder: Path, **config: float) -> None:
    """A one-label classifier of another's making, or ours with `score_std`."""
    write_chat_model(folder)
    torch.manual_seed(0)
    settings = {
        "vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
        "pad_token_id": 1, "num_labels": 1,
    }  # fmt: skip
    shape = LlamaConfig(**settings | config)
    LlamaForSequenceClassification(shape).save_pretrained(folder)


def test_a_classifier_that_others_have_trained_may_annotate(place: Place):
    """It has no normaliser of ours, and needs none to say which of two scores is higher."""
    place.values["label"] = {"annotators": "reward_model", "reward_model": "model"}
    for normaliser in ({}, {"score_std": 1.0, "score_mean": 0.0}):
        write_reward_model(place.root / "model", **normaliser)
        check_inputs(load_params(place.save()), place.root)


@pytest.mark.parametrize("normaliser", [{}, {"score_std": 1.0, "score_mean": 0.0}])
def test_a_reward_model_is_no_policy(place: Place, normaliser: dict[str, float]):
    """With tied embeddings it would load as one, which nobody has trained to speak."""
    write_reward_model(place.root / "judge", tie_word_embeddings=True, **normaliser)
    place.values["base"]["model"] = "judge"

    (found,) = place.preflight()

    kind = "LlamaForSequenceClassification in config.json"
    words = f"{place.root}/judge: a model that scores ({kind}), expected a causal model"
    assert found == f"base.model: {words}"


def test_a_value_model_cannot_start_from_a_reward_model_of_other_tokens(place: Place):
    """Found by `ppo` alone, after SFT and the reward model, it would cost hours."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"] |= {"value_model": "separate", "value_init": "reward"}
    write_reward_model(place.root / "judge")
    check_inputs(load_params(place.save()), place.root)

    text = (place.root / "judge/tokenizer.json").read_text()
    (place.root / "judge/tokenizer.json").write_text(text.replace('"w3"', '"v3"'))
    (found,) = place.preflight()
    assert (
        "ppo.value_init: reward, but judge (reward.model) has a tokenizer or a chat template"
        in found
    )

    place.values["ppo"]["value_init"] = "zero"
    check_inputs(load_params(place.save()), place.root)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_labels": 2}, "has 2 labels"),
        ({"hidden_size": 32}, "has hidden states of 32 numbers, not 16"),
    ],
)
def test_a_value_model_cannot_start_from_a_reward_model_of_another_shape(
    place: Place, changes: dict[str, int], words: str
):
    write_chat_model(place.root / "model")
    write_reward_model(place.root / "judge", **changes)
    place.values["base"]["model"] = "model"
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"] |= {"value_model": "separate", "value_init": "reward"}

    (found,) = place.preflight()

    assert found.startswith("ppo.value_init: reward, but judge (reward.model) ")
    assert words in found


def test_a_value_model_of_the_embedded_model_cannot_start_from_a_foreign_one(place: Place):
    place.values["base"]["model"] = None
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"] |= {"value_model": "separate", "value_init": "reward"}
    write_reward_model(place.root / "judge")
    (found,) = place.preflight()
    assert "judge (reward.model) has a tokenizer or a chat template of its own" in found

    write_reward_model(place.root / "judge", score_std=1.0, score_mean=0.0)
    check_inputs(load_params(place.save()), place.root)


@pytest.mark.parametrize("wrong", ['"model_type": "newest"', '"num_hidden_layers": "two"'])
def test_a_scorer_whose_config_the_library_does_not_read_is_refused(place: Place, wrong: str):
    write_reward_model(place.root / "judge")
    config = place.root / "judge/config.json"
    key = wrong.partition(":")[0]
    kept = [line for line in config.read_text().splitlines() if key not in line]
    config.write_text("\n".join([kept[0], f"  {wrong},", *kept[1:]]))
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"]["value_init"] = "zero"

    (found,) = place.preflight()

    assert found.startswith("reward.model: ")
    assert "judge: cannot be loaded: " in found


def test_a_scorer_that_cannot_read_all_that_is_allowed_is_named(
    place: Place, caplog: pytest.LogCaptureFixture
):
    """Found in an iteration of PPO alone, it would cost hours; shorter texts are fine."""
    write_chat_model(place.root / "judge")
    shape = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=100, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(shape).save_pretrained(place.root / "judge")
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"] |= {"max_prompt_tokens": 60, "value_init": "zero"}
    place.values["ppo"]["sampling"] = {"max_new_tokens": 41}
    for name in ("sample", "evaluate"):
        place.values[name] |= {"max_prompt_tokens": 60, "sampling": {"max_new_tokens": 40}}

    check_inputs(load_params(place.save()), place.root)
    (note,) = [note for note in caplog.messages if "reward.model" in note]
    assert note.startswith(
        "reward.model: judge reads at most 100 of its tokens, but ppo.max_prompt_tokens + "
        "ppo.sampling.max_new_tokens may be more of the policy's; a longer text ends the stage"
    )

    caplog.clear()
    place.values["ppo"]["sampling"] = {"max_new_tokens": 40}
    check_inputs(load_params(place.save()), place.root)
    assert "judge reads" not in caplog.text


def test_a_scorer_whose_weights_git_lfs_has_not_fetched_is_refused(place: Place):
    write_reward_model(place.root / "judge")
    (place.root / "judge/model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1"
    )
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"]["value_init"] = "zero"

    (found,) = place.preflight()

    assert found.startswith("reward.model: ")
    assert "judge/model.safetensors: no file of weights: a pointer of Git LFS" in found


def test_a_scorer_without_a_tokenizer_is_refused(place: Place):
    """As `model.save_pretrained` alone leaves it; a BERT would then count words and no more."""
    shape = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(shape).save_pretrained(place.root / "judge")
    place.values["label"] = {"annotators": "reward_model", "reward_model": "judge"}

    (found,) = place.preflight()

    assert found.startswith("label.reward_model: ")
    assert "judge: holds no tokenizer (none of tekken.json, tokenizer.json, " in found


@pytest.mark.parametrize("key", ["reward.model", "label.reward_model"])
@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "a prompt of messages needs a tokenizer with a chat template"),
        ("{{ raise_exception('No system') if messages[0]['role'] == 'system' }}", "No system"),
    ],
)
def test_a_scorer_that_cannot_write_a_prompt_is_refused(
    place: Place, key: str, template: str | None, words: str
):
    """Found by `reward` alone it would cost SFT and the labels of a round, by `evaluate` PPO."""
    write_reward_model(place.root / "judge")
    written = place.root / "judge/chat_template.jinja"
    place.values["reward"] |= {"model": "judge"}
    if key == "label.reward_model":
        place.values["reward"] |= {"model": None}
        place.values["label"]["reward_model"] = "judge"
        place.values["evaluate"]["judge"] = "reward_model"
    place.values["ppo"]["value_init"] = "zero"
    turns = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2"}]
    given = (place.root / "own/prompts.jsonl").read_text()
    given += json.dumps({"prompt_id": "s", "prompt": turns}) + "\n"
    (place.root / "own/prompts.jsonl").write_text(given)
    check_inputs(load_params(place.save()), place.root)

    if template is None:
        written.unlink()
    else:
        written.write_text(template + written.read_text())
    found = place.preflight()

    assert all(line.startswith(f"{key}: ") and words in line for line in found)
    assert found[-1].endswith(": prepare.files.prompts has prompts with the roles system, user")


def test_an_ensemble_is_no_reward_model_of_others(place: Place):
    """Its further members would be left out without a word."""
    write_reward_model(place.root / "judge", score_std=1.0, score_mean=0.0)
    write_reward_model(place.root / "judge/member_2", score_std=1.0, score_mean=0.0)
    place.values["reward"] |= {"model": "judge"}

    (found,) = place.preflight()
    assert found == "reward.model: judge is an ensemble, expected one model; name a member"

    place.values["reward"] |= {"model": "judge/member_2"}
    check_inputs(load_params(place.save()), place.root)


def in_several_files(folder: Path) -> None:
    """The weights as large models have them on the hub: shards, and an index with their names."""
    kinds = {"base": AutoModelForCausalLM, "judge": AutoModelForSequenceClassification}
    model = kinds[folder.name].from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="2KB")


@pytest.mark.parametrize("key", ["base.model", "reward.model", "label.reward_model"])
def test_weights_that_a_download_has_left_out_are_found_before_anything_starts(
    place: Place, key: str
):
    """All that are there are sound; the reward model's would be missed after SFT, hours later."""
    write_chat_model(place.root / "base")
    write_reward_model(place.root / "judge")
    for name in ("base", "judge"):
        in_several_files(place.root / name)
    place.values["base"]["model"] = "base"
    place.values["ppo"]["value_init"] = "zero"
    if key == "reward.model":
        place.values["reward"] |= {"model": "judge"}
    else:
        place.values["label"] |= {"reward_model": "judge"}
        place.values["evaluate"]["judge"] = "reward_model"
    check_inputs(load_params(place.save()), place.root)

    folder = place.root / ("base" if key == "base.model" else "judge")
    shards = sorted(folder.glob("model-*"))
    shards[1].rename(folder / f"{shards[1].name}.incomplete")
    (found,) = place.preflight()
    assert found.startswith(f"{key}: ")
    assert f"1 of {len(shards)} files of its weights are missing" in found
    assert found.endswith(f": {shards[1].name}; fetch the rest")

    (folder / "model.safetensors.index.json").unlink()
    (found,) = place.preflight()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in found


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


def test_a_high_rate_for_all_weights_of_a_large_model_is_noted(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Adapters' rate with `lora: null`; the run goes on, since nobody knows all models."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    for section in ("sft", "reward", "ppo"):
        place.values[section]["optimiser"] = {"name": "adamw", "lr": 1e-5}
    place.values["ppo"] |= {"optimiser": {"lr": 3e-4}, "value_optimiser": {"lr": 1e-5}}
    monkeypatch.setattr(model_checks, "_parameters", lambda _: 134_515_008)

    check_inputs(load_params(place.save()), place.root)

    (note,) = [note for note in caplog.messages if "optimiser.lr: " in note]
    assert note.startswith("ppo.optimiser.lr: 0.0003 for all of 135 million weights")

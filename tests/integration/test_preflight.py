"""What is found before the first stage, by `make repro` as by the flow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.own_data.preflight import check_inputs
from tasks.params.loading import load_params
from tests.integration.own_place import ROOT, Place, write_rows
from tests.word_models import WORDS, write_chat_model


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_adapter_is_no_base_model(place: Place):
    write_chat_model(place.root / "model")
    (place.root / "model/config.json").unlink()
    (place.root / "model/model.safetensors").rename(place.root / "model/adapter_model.safetensors")
    (place.root / "model/adapter_config.json").write_text('{"peft_type": "LORA"}')
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert "holds an adapter (adapter_config.json)" in found
    assert "merge" in found


def test_a_file_is_no_base_model(place: Place):
    (place.root / "model.gguf").write_bytes(b"GGUF")
    place.values["base"]["model"] = "model.gguf"

    (found,) = place.preflight()

    words = "model.gguf: a file; expected a model folder in Hugging Face format"
    assert found == f"base.model: {words}"


def test_a_judgments_file_may_still_come(place: Place):
    place.values["label"] = {"annotators": "file", "file": "own/judgments.jsonl"}
    check_inputs(load_params(place.save()), place.root)


def test_a_server_that_is_not_here_is_missed_before_the_first_stage(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("RLHF_GENERATION_URL", raising=False)
    monkeypatch.setenv("RLHF_GENERATION_COMMAND", "no-such-vllm serve")
    place.values["run"]["generation"] = "server"

    check_inputs(load_params(place.save()), place.root)

    said = caplog.messages[0]
    assert said.startswith("run.generation: server, but there is no command 'no-such-vllm serve'")


REPRO = [sys.executable, "-m", "tasks.repro"]


def repro(place: Place, **environment: str) -> tuple[int, list[str]]:
    """Exit code, and stderr without the file's name."""
    path = place.save()
    (place.root / "dvc.yaml").write_text("stages: {}\n")
    done = subprocess.run(
        REPRO,
        cwd=place.root,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
    return done.returncode, lines


def test_repro_tells_all_problems_at_once_with_exit_2(place: Place):
    write_rows(place.root / "own/bad.jsonl", [{"prompt": "p", "rejected": "b"}])
    place.values["base"] |= {"model": "org/model", "revision": "0" * 40}
    place.values["label"] = {"annotators": "rubric"}
    place.values["prepare"]["sources"] = [{"path": "own/bad.jsonl", "format": "trl"}]

    code, lines = repro(place, HF_HUB_OFFLINE="1", HF_HOME=str(place.root / ".work"))

    assert code == 2
    scale, demonstrations, prompts, *problems = lines
    assert scale.startswith("sample.against_sft: 0.1 of 20 pairs has 2 of SFT's responses")
    assert demonstrations.startswith("prepare.files.demonstrations: ")
    assert prompts.startswith("sample.pairs: 3 rounds, each on the preferences of the one before")
    assert [line.partition(": ")[0] for line in problems] == [
        "prepare.sources.0", "base.model", "label.annotators",
    ]  # fmt: skip
    assert "not in Hugging Face's cache" in problems[1]
    assert "hf download org/model --revision 000" in problems[1]
    assert place.made() == ["dvc.yaml"]


def test_repro_names_the_folder_that_a_misspelt_one_may_mean(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "modle"

    code, lines = repro(place)

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
        num_attention_heads=2, max_position_embeddings=256, pad_token_id=1,
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


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("own/words.txt", "good\tmany\n", "ppo.rewards.sentiment_words: own/words.txt, line 1"),
        ("data/allowed.jsonl", '{"pair_id": "p"}\n', "validate.severities: data/allowed.jsonl:1"),
    ],
)
def test_lists_that_a_later_stage_reads_are_read_before_the_first(
    place: Place, name: str, text: str, words: str
):
    place.values["ppo"]["rewards"] = {"sentiment": 1.0, "sentiment_words": "own/words.txt"}
    for path in ("own/words.txt", name):
        (place.root / path).parent.mkdir(exist_ok=True)
        (place.root / path).write_text("good\t1\n" if path != name else text)

    (found,) = place.preflight()

    assert found.startswith(words)


@pytest.mark.parametrize(
    ("pairs", "annotators", "noted"), [(20, "people", True), (10, "people", False)]
)
def test_prompts_that_will_not_do_for_all_rounds_are_noted(
    place: Place, caplog: pytest.LogCaptureFixture, pairs: int, annotators: str, noted: bool
):
    """Of 50 prompts some 40 are for training, and three rounds ask each of theirs once."""
    place.values["sample"] |= {"pairs": pairs, "against_sft": 0.5}
    place.values["label"] = {"annotators": annotators}
    check_inputs(load_params(place.save()), place.root)
    assert ("sample.pairs: 3 rounds, each on the preferences" in caplog.text) is noted


def test_prompts_of_the_embedded_world_are_noted_too(
    place: Place, caplog: pytest.LogCaptureFixture
):
    place.values["prepare"] |= {"files": None, "train_prompts": 50}
    place.values["label"] = {"annotators": "rubric"}
    check_inputs(load_params(place.save()), place.root)
    assert "ask 3 x 20 prompts, and 50 for training" in caplog.text

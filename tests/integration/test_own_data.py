"""Your own prompts, demonstrations and base model through the first three stages."""

import gzip
import json
import logging
import shutil
from codecs import BOM_UTF8

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from tasks.own_data.preflight import check_inputs
from tasks.params.loading import load_params
from tests.integration.own_place import Place, place_fixture, rows, write_rows  # noqa: F401
from tests.word_models import TEMPLATE, tokenizer, write_chat_model

pytestmark = pytest.mark.long


def test_own_prompts_demonstrations_and_chat_model_become_an_sft_model(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    del place.values["prepare"]["files"]["corpus"]

    for stage in ("prepare", "base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err

    prepared = place.root / "data/prepared"
    splits = [rows(prepared / f"prompts/{split}.jsonl") for split in ("train", "heldout", "test")]
    assert sorted(row["prompt_id"] for part in splits for row in part) == sorted(
        f"p{n}" for n in range(50)
    )
    assert all(splits)
    assert len(splits[0]) > len(splits[1]) + len(splits[2])
    assert splits[0][0]["prompt"][0]["role"] == "user"
    assert (prepared / "corpus.jsonl").read_bytes() == b""
    assert (prepared / "preferences/train.jsonl").read_bytes() == b""
    base = json.loads((place.root / "models/base/manifest.json").read_text())
    assert base["params"]["base"]["model"] == "model"
    # The template travels with the model, and SFT moved the weights.
    assert TEMPLATE in (place.root / "models/sft/chat_template.jinja").read_text()
    sft = json.loads((place.root / "models/sft/manifest.json").read_text())
    weights = "model.safetensors"
    assert base["files"][weights]["sha256"] != sft["files"][weights]["sha256"]
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == 50


def test_without_demonstrations_the_base_model_is_what_the_rounds_start_from(
    place: Place, caplog: pytest.LogCaptureFixture
):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0
    prepared = place.root / "data/prepared/demonstrations.jsonl"
    assert prepared.exists()
    del place.values["prepare"]["files"]["demonstrations"]
    with caplog.at_level(logging.WARNING):
        check_inputs(load_params(place.save()), place.root)
    assert "prepare.files.demonstrations: null, so SFT trains nothing" in caplog.text

    for stage in ("prepare", "base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err

    assert "sft: no demonstrations, so models/sft is the base model as it is" in err
    assert not prepared.exists()
    base, sft = (
        json.loads((place.root / f"models/{name}/manifest.json").read_text())["files"]
        for name in ("base", "sft")
    )
    assert base == sft
    assert {"model.safetensors", "chat_template.jinja", "generation_config.json"} <= set(sft)
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert metrics == {"demonstrations": 0}


def test_own_preferences_are_what_the_first_round_adds_to(place: Place):
    preferences = [
        {
            "pair_id": f"{n:016x}", "prompt_id": f"p{n}", "prompt": f"w{n}", "chosen": "w1",
            "rejected": "w2", "margin": 0.0, "weight": 1.0, "source": "human", "round": "",
            "split": "train" if n else "heldout",
        }
        for n in range(3)
    ]  # fmt: skip
    write_rows(place.root / "own/preferences.jsonl", preferences)
    place.values["prepare"]["files"]["preferences"] = "own/preferences.jsonl"

    assert place.run("prepare")[0] == 0

    folder = place.root / "data/prepared/preferences"
    assert rows(folder / "train.jsonl") == preferences[1:]
    assert rows(folder / "heldout.jsonl") == preferences[:1]


def test_a_missing_file_is_named_with_its_key(place: Place):
    place.values["prepare"]["files"]["preferences"] = "own/preferences.jsonl"
    problem = "prepare.files.preferences: own/preferences.jsonl: no such file"

    code, err = place.run("prepare")

    assert code == 2
    assert err == f"prepare: {problem}\n"
    assert place.made() == []
    assert place.preflight() == [problem]


def test_malformed_rows_are_all_named_with_file_and_line(place: Place):
    file = place.root / "own/demonstrations.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = '{"prompt_id": "p2", "prompt": "w2"}'
    lines[7] = "not json"
    file.write_text("\n".join(lines) + "\n")

    code, err = place.run("prepare")

    assert code == 2
    assert 'own/demonstrations.jsonl:3: field "response": missing' in err
    assert "own/demonstrations.jsonl:8: not JSON" in err
    assert "Traceback" not in err
    assert place.made() == []


@pytest.mark.parametrize("kind", ["plain", "packed", "with a byte order mark"])
def test_a_corpus_is_prepared_as_plain_rows_and_a_plain_one_keeps_its_bytes(
    place: Place, kind: str
):
    content = '{"text":  "w1 \u2028 é"}\n'.encode()
    name = "own/packed.jsonl.gz" if kind == "packed" else "own/corpus.jsonl"
    written = {"plain": content, "packed": gzip.compress(content)}.get(kind, BOM_UTF8 + content)
    (place.root / name).write_bytes(written)
    place.values["prepare"]["files"]["corpus"] = name

    assert place.run("prepare")[0] == 0

    found = (place.root / "data/prepared/corpus.jsonl").read_bytes()
    assert found == (content if kind == "plain" else content.replace(b":  ", b": "))


def test_tables_and_saved_data_sets_are_prepared_like_json_lines(place: Place):
    own = place.root / "own"
    tables = {
        name: Dataset.from_list(rows(own / f"{name}.jsonl"))
        for name in ("prompts", "demonstrations", "corpus")
    }
    assert place.run("prepare")[0] == 0
    prepared = place.root / "data/prepared"
    expected = {path: path.read_bytes() for path in prepared.rglob("*.jsonl")}
    tables["prompts"].save_to_disk(own / "prompts")
    tables["demonstrations"].to_parquet(own / "demonstrations.parquet")
    tables["corpus"].to_csv(own / "corpus.csv")
    shutil.rmtree(prepared)
    place.values["prepare"]["files"] = {
        "prompts": "own/prompts",
        "demonstrations": "own/demonstrations.parquet",
        "corpus": "own/corpus.csv",
    }
    check_inputs(load_params(place.save()), place.root)

    assert place.run("prepare")[0] == 0

    assert {path: path.read_bytes() for path in prepared.rglob("*.jsonl")} == expected


def test_too_few_prompts_for_three_splits_are_refused(place: Place):
    write_rows(place.root / "own/prompts.jsonl", [{"prompt_id": "p", "prompt": "w1"}])

    code, err = place.run("prepare")

    assert code == 2
    assert "own/prompts.jsonl: no prompt falls into split" in err
    assert place.made() == []


def test_conversations_completions_and_rows_without_ids_become_an_sft_model(place: Place):
    """On a model as published: its end token is its padding, and several ids end a response."""
    write_chat_model(place.root / "model")
    chat = tokenizer(eos_token="</s>", pad_token="</s>")
    # Turns that `</s>` ends; of an argument, the template writes another word.
    chat.chat_template = TEMPLATE.replace("{% endfor %}", "</s> {% endfor %}").replace(
        "<assistant>{%", "<assistant>{% if not thinking is defined %} w59{% endif %}{%"
    )
    chat.save_pretrained(place.root / "model")
    stops = {"eos_token_id": [2, 3], "temperature": 0.7}
    (place.root / "model/generation_config.json").write_text(json.dumps(stops))
    place.values["base"] |= {"model": "model", "chat_template_args": {"thinking": False}}
    asked = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": f"w{n} w1"} for n in range(50)])
    write_rows(
        place.root / "own/demonstrations.jsonl",
        [
            *({"messages": [*asked, *asked], "source": f"{n}"} for n in range(8)),
            *({"prompt": asked[:1], "completion": asked[1:]} for _ in range(8)),
            *({"prompt": f"w{n}", "completion": "w4"} for n in range(8)),
        ],
    )
    check_inputs(load_params(place.save()), place.root)

    for stage in ("prepare", "base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err

    folder = place.root / "models/sft"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 3]
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.7
    assert json.loads((folder / "tokenizer_config.json").read_text())["pad_token"] == "</s>"
    saved = AutoTokenizer.from_pretrained(folder)
    text = saved.apply_chat_template(asked[:1], tokenize=False, add_generation_prompt=True)
    assert text == "<user> w1 w2 </s> <assistant>"
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == 24


def test_all_missing_files_and_the_model_are_reported_at_once(place: Place):
    (place.root / "model").mkdir()
    place.values["base"]["model"] = "model"
    place.values["prepare"]["files"] |= {"prompts": "a.jsonl", "preferences": "b.jsonl"}
    place.values["ppo"]["rewards"] = {"sentiment": 1.0, "sentiment_words": "words.txt"}

    keys = [problem.partition(":")[0] for problem in place.preflight()]

    assert keys == [
        "prepare.files.prompts",
        "prepare.files.preferences",
        "base.model",
        "ppo.rewards.sentiment_words",
    ]


def test_sound_inputs_pass(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"

    check_inputs(load_params(place.save()), place.root)

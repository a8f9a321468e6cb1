"""Your own base model: what it must be able to do, and what is refused before training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.integration.own_place import Place, pairs, rows, write_rows
from tests.word_models import TEMPLATE, WORDS, write_chat_model, write_gpt2

pytestmark = pytest.mark.long


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"thinkin": False}, "'thinkin' is nothing that the chat template reads"),
        ({"messages": "x"}, "'messages' is not for users to set"),
    ],
)
def test_an_argument_that_no_template_reads_is_found_before_anything_starts(
    place: Place, args: dict[str, Any], problem: str
):
    write_chat_model(place.root / "model")
    place.values["base"] |= {"model": "model", "chat_template_args": args}
    assert place.preflight() == [f"base.chat_template_args: {problem}"]


def test_a_tokenizer_that_cannot_mark_the_end_is_found_before_anything_starts(place: Place):
    write_gpt2(place.root / "model", pad_token="<pad>")
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert found.startswith("base.model: ")
    assert "the tokenizer has no end-of-sequence token" in found


def write_model(folder: Path, kind: str, **settings: Any) -> None:
    """A model of any family, with the chat model's tokenizer."""
    write_chat_model(folder)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 2,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **sizes | settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def test_base_takes_a_family_for_which_the_library_has_no_classifier(place: Place):
    write_model(place.root / "model", "granite", logits_scaling=0.1)
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (0, False), err
    taken, given = (
        load_file(folder / "model.safetensors")
        for folder in (place.root / "models/base", place.root / "model")
    )
    assert all(torch.equal(taken[name], weight) for name, weight in given.items())


def test_base_refuses_a_model_that_later_stages_could_not_use(place: Place):
    write_model(place.root / "model", "mamba", state_size=4)
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert "base.model model: a MambaForCausalLM fails where decoding with a cache" in err
    assert "base" not in {path.name for path in (place.root / "models").glob("*")}


@pytest.mark.parametrize("section", ["sft", "reward", "ppo"])
def test_base_refuses_to_pack_a_model_that_cannot_be_packed(place: Place, section: str):
    """Falcon builds its mask without positions."""
    write_model(place.root / "model", "falcon", new_decoder_architecture=True, num_kv_heads=2)
    place.values["base"]["model"] = "model"
    place.values[section]["packing"] = True
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert "this model does not support packing, set" in err
    assert f"set {section}.packing to false" in err


def test_rows_stay_within_the_positions_of_a_model(place: Place):
    """GPT-2 has a table of positions: lengths beyond it are refused, longer rows left out."""
    write_model(place.root / "model", "gpt2", n_embd=8, n_layer=1, n_head=2, n_positions=64)
    place.values["base"]["model"] = "model"
    demonstrations = place.root / "own/demonstrations.jsonl"
    long = rows(demonstrations)[0] | {"response": " ".join(["w1"] * 100)}
    write_rows(demonstrations, [*rows(demonstrations), long])
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert "base.model model: the model has positions for 64 tokens, and sft.max_tokens" in err

    place.values["sft"]["max_tokens"] = place.values["reward"]["max_tokens"] = 64
    for section in ("sample", "ppo", "evaluate"):
        place.values[section] |= {"max_prompt_tokens": 20, "sampling": {"max_new_tokens": 44}}
    for stage in ("base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert (metrics["demonstrations"], metrics["too_long"]) == (50, 1)


def test_rows_beyond_those_that_rotary_positions_were_trained_on_are_a_warning(place: Place):
    write_model(place.root / "model", "llama", max_position_embeddings=64)
    place.values["base"]["model"] = "model"
    place.values["sft"]["max_tokens"] = place.values["reward"]["max_tokens"] = 64
    for section in ("sample", "evaluate"):
        place.values[section] |= {"max_prompt_tokens": 20, "sampling": {"max_new_tokens": 44}}
    place.values["ppo"] |= {"max_prompt_tokens": 21, "sampling": {"max_new_tokens": 44}}
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert code == 0, err
    assert (
        "base: the model was made for rows of at most 64 tokens, and "
        "ppo.max_prompt_tokens + ppo.sampling.max_new_tokens allows 65\n" in err
    )


@pytest.mark.parametrize("section", ["sft", "reward", "sample", "ppo", "evaluate"])
def test_base_refuses_lengths_of_each_later_stage(place: Place, section: str):
    write_model(place.root / "model", "gpt2", n_embd=8, n_layer=1, n_head=2, n_positions=1000)
    place.values["base"]["model"] = "model"
    place.values[section] |= (
        {"max_tokens": 1001} if section in ("sft", "reward") else {"max_prompt_tokens": 1000}
    )
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert f"the model has positions for 1000 tokens, and {section}.max_" in err


@pytest.mark.parametrize("name", ["demonstrations", "prompts/test", "preferences/train"])
def test_base_refuses_messages_where_nothing_can_write_them(place: Place, name: str):
    write_gpt2(place.root / "model", eos_token="</s>")
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0
    prepared = place.root / "data/prepared"
    for path in prepared.rglob("*.jsonl"):
        write_rows(path, [row | {"prompt": "w1"} for row in rows(path)])
    path = prepared / f"{name}.jsonl"
    messages = {"prompt": [{"role": "user", "content": "w1"}], "response": "w2"}
    write_rows(path, [*rows(path), messages])

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    place_of_it = f"data/prepared/{name}.jsonl, line {len(rows(path))}, holds messages"
    assert f"has no chat template, and {place_of_it}" in err


REFUSES = "{{ raise_exception('No system') if messages[0]['role'] == 'system' }}" + TEMPLATE
IGNORES = TEMPLATE.replace("in messages", "in messages if m['role'] != 'system'")


@pytest.mark.parametrize("name", ["prompts/test", "demonstrations", "preferences/heldout"])
@pytest.mark.parametrize(
    ("template", "why"), [(REFUSES, "No system"), (IGNORES, "leaves out what system says")]
)
def test_base_refuses_turns_that_the_template_does_not_take(
    place: Place, name: str, template: str, why: str
):
    write_chat_model(place.root / "model")
    (place.root / "model/chat_template.jinja").write_text(template)
    place.values["base"]["model"] = "model"
    place.values["prepare"]["sources"] = [{"path": "own/pairs.jsonl"}]
    write_rows(place.root / "own/pairs.jsonl", pairs([f"w1 w{n}" for n in range(20)]))
    place.run("prepare")
    path = place.root / f"data/prepared/{name}.jsonl"
    turns = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2"}]
    write_rows(path, [*rows(path), {**rows(path)[-1], "prompt": turns}])

    code, err = place.run("base")

    assert code == 2
    place_of_it = f"data/prepared/{name}.jsonl, line {len(rows(path))}, with the roles system, user"
    assert f"{why}: {place_of_it}" in err


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_model_is_found_before_anything_starts(place: Place, lacking: str):
    write_chat_model(place.root / "model")
    (place.root / "model" / lacking).unlink()
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert found.startswith("base.model: ")
    assert lacking.partition(".")[2] in found


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "`git lfs pull`"),
        (b"", "no file of weights"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00{", "no file of weights"),
    ],
)
def test_weights_that_are_none_are_found_before_anything_starts(
    place: Place, content: bytes, why: str
):
    write_chat_model(place.root / "model")
    (place.root / "model/model.safetensors").write_bytes(content)
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert found.startswith("base.model: ")
    assert "model/model.safetensors: no file of weights: " in found
    assert why in found


def test_a_dtype_that_torch_does_not_have_is_one_line(place: Place):
    write_chat_model(place.root / "model")
    config = place.root / "model/config.json"
    config.write_text(config.read_text().replace('"float32"', '"float33"'))
    assert "float33" in config.read_text()
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert "model: cannot be loaded: " in found
    assert "float33" in found


@pytest.mark.parametrize("template", [TEMPLATE.replace("['content']", "['contents']"), "hello", ""])
def test_a_template_that_leaves_out_what_a_user_says_is_refused(place: Place, template: str):
    write_chat_model(place.root / "model")
    chat = AutoTokenizer.from_pretrained(place.root / "model")
    chat.chat_template = template
    chat.save_pretrained(place.root / "model")
    if not template:
        (place.root / "model/chat_template.jinja").write_text("")
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()
    assert "base.model: its chat template leaves out what a user says" in found

    assert place.run("prepare")[0] == 0
    code, err = place.run("base")
    assert (code, "its chat template leaves out what a user says" in err) == (2, True)


def test_a_word_without_an_embedding_is_refused_where_the_data_have_it(place: Place):
    write_chat_model(place.root / "model")
    chat = AutoTokenizer.from_pretrained(place.root / "model")
    chat.add_tokens(["<extra>"])
    chat.save_pretrained(place.root / "model")
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0
    # As with Gemma 3's word for a picture: it is in no text.
    assert place.run("base")[0] == 0

    path = place.root / "data/prepared/demonstrations.jsonl"
    first = rows(path)[0]
    write_rows(path, [*rows(path), {**first, "response": "w1 <extra> w2"}])
    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    line = f"data/prepared/demonstrations.jsonl, line {len(rows(path))}"
    assert f"its tokenizer knows <extra>, which {line}, has" in err


def test_a_tokenizer_of_another_model_with_more_words_is_refused(place: Place):
    write_model(place.root / "model", "llama", vocab_size=len(WORDS) - 1)
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0

    code, err = place.run("base")

    assert (code, "Traceback" in err) == (2, False), err
    assert f"gives id {len(WORDS) - 1}, but the model has embeddings for {len(WORDS) - 1}" in err

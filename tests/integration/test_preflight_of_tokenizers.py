"""What is found before any training where the library makes another tokenizer of a folder's."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import GPT2Config, PreTrainedTokenizerFast, Qwen2Config

from tasks.own_data.preflight import check_inputs
from tasks.own_data.tokenizer_files import PROBE
from tasks.params.loading import load_params
from tests.integration.own_place import Place
from tests.integration.test_preflight_of_scorers import write_reward_model
from tests.word_models import TEMPLATE, write_chat_model


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def give_blanks_of_sentencepiece(folder: Path) -> None:
    """A tokenizer as Llama 2's, trained on some words: its tokens hold the blanks before words."""
    words = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    blank = "\N{LOWER ONE EIGHTH BLOCK}"
    words.normalizer = normalizers.Sequence(
        [normalizers.Prepend(blank), normalizers.Replace(" ", blank)]
    )
    words.decoder = decoders.Sequence([decoders.Replace(blank, " "), decoders.Fuse()])
    special = ["<unk>", "<pad>", "</s>"]
    words.train_from_iterator([PROBE], trainers.BpeTrainer(vocab_size=40, special_tokens=special))
    chat = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>")
    chat.chat_template = TEMPLATE
    chat.save_pretrained(folder)


def be_called(folder: Path, kind: str) -> None:
    """Another `model_type`: the folder's tokenizer is read by it."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": kind}))


@pytest.mark.parametrize("key", ["base.model", "reward.model"])
def test_a_tokenizer_that_would_lose_the_blanks_of_every_text_is_refused(place: Place, key: str):
    """A Qwen 2 of one's own: it went through all rounds, and its responses were one long word."""
    write_chat_model(place.root / "model")
    write_reward_model(place.root / "judge")
    place.values["base"]["model"] = "model"
    place.values["reward"] |= {"model": "judge"}
    place.values["ppo"]["value_init"] = "zero"
    folder = place.root / {"base.model": "model", "reward.model": "judge"}[key]
    give_blanks_of_sentencepiece(folder)
    check_inputs(load_params(place.save()), place.root)

    be_called(folder, Qwen2Config.model_type)
    (found,) = place.preflight()

    assert found.startswith(f"{key}: ")
    assert "makes a Qwen2Tokenizer of its tokenizer.json" in found
    assert f"turns {PROBE!r} into {PROBE.replace(' ', '')!r}" in found


def test_a_tokenizer_that_would_know_no_word_is_refused(place: Place):
    """`base` passed, and SFT ended with a loss of 0."""
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    check_inputs(load_params(place.save()), place.root)

    be_called(place.root / "model", Qwen2Config.model_type)
    (found,) = place.preflight()

    assert f"turns {PROBE!r} into ''; name the class" in found


@pytest.mark.parametrize("kind", ["llama", "mistral", "falcon", "qwen2"])
def test_a_base_model_without_a_tokenizer_is_said_to_have_none(place: Place, kind: str):
    """As `model.save_pretrained` alone leaves it; the error ended with a colon and nothing more."""
    write_chat_model(place.root / "model")
    be_called(place.root / "model", kind)
    for path in (place.root / "model").glob("*token*"):
        path.unlink()
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert found.startswith("base.model: ")
    assert "model: holds no tokenizer (none of tekken.json, tokenizer.json, " in found


def test_a_file_of_sentencepiece_alone_is_not_taken_for_one_of_tiktoken(place: Place):
    """A folder from before tokenizer.json. Here nothing reads it, and `tiktoken` would not."""
    write_chat_model(place.root / "model")
    for path in (place.root / "model").glob("*token*"):
        path.unlink()
    # A model of SentencePiece with one piece: <unk>, of type 2.
    (place.root / "model/tokenizer.model").write_bytes(b"\x0a\x09\x0a\x05<unk>\x18\x02")
    place.values["base"]["model"] = "model"

    (found,) = place.preflight()

    assert "model: its tokenizer is tokenizer.model alone" in found
    assert "tiktoken" not in found


def test_where_the_folder_names_the_class_of_its_file_that_is_taken(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    give_blanks_of_sentencepiece(place.root / "model")
    be_called(place.root / "model", GPT2Config.model_type)
    check_inputs(load_params(place.save()), place.root)

    named = place.root / "model/tokenizer_config.json"
    named.write_text(
        json.dumps({**json.loads(named.read_text()), "tokenizer_class": "GPT2Tokenizer"})
    )
    (found,) = place.preflight()

    assert "makes a GPT2Tokenizer of its tokenizer.json" in found
    assert '"tokenizer_class": "TokenizersBackend"' in found


@pytest.mark.long
def test_base_refuses_it_where_there_was_no_folder_to_look_at_before(place: Place):
    """A model that is named by its id on the hub, of which base has the folder."""
    write_chat_model(place.root / "model")
    be_called(place.root / "model", Qwen2Config.model_type)
    place.values["base"]["model"] = "model"
    assert place.run("prepare")[0] == 0

    code, said = place.run("base")

    assert (code, "Traceback" in said) == (2, False), said
    assert "base.model model: model: transformers makes a Qwen2Tokenizer" in said
    assert not (place.root / "models/base").exists()

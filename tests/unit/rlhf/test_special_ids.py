"""The end of a response, the other ids at which generation stops, and padding."""

import json

import pytest
from transformers import GenerationConfig

from rlhf.model_folders import ModelFolderError, save_model
from rlhf.special_ids import SpecialIds, load_special_ids, special_ids, write_stops
from tests import chat_families, tiny


def ids(tokenizer, *tokens: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def folder_with(tmp_path, stops, *, tokenizer, generation: bool = True):
    """A model's folder that names these ids, in generation_config.json or in config.json."""
    lm = tiny.llama(vocabulary=len(tokenizer))
    lm.config.eos_token_id = lm.generation_config.eos_token_id = stops
    save_model(lm, tmp_path)
    if not generation:
        (tmp_path / "generation_config.json").unlink()
    return tmp_path


@pytest.mark.parametrize("generation", [True, False])
def test_all_ids_that_a_model_names_stop_it_and_the_templates_comes_first(tmp_path, generation):
    """Llama 3: three of them, and its turns end with the second."""
    tokenizer = chat_families.llama_3()
    named = ids(tokenizer, "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
    folder = folder_with(tmp_path, named, tokenizer=tokenizer, generation=generation)
    tokens = load_special_ids(folder, tokenizer)
    assert tokens.eos == named[2]
    assert tokens.stops == (named[2], named[0], named[1])
    assert tokens.pad in range(len(tokenizer))


def test_ids_that_the_model_does_not_have_stop_nothing(tmp_path):
    tokenizer = chat_families.llama_3()
    (turn,) = ids(tokenizer, "<|eot_id|>")
    own = special_ids(tokenizer).stops
    folder = folder_with(tmp_path, [turn, len(tokenizer), -1, 99_999], tokenizer=tokenizer)
    assert load_special_ids(folder, tokenizer).stops == own


def test_an_end_that_is_no_id_is_refused(tmp_path):
    folder = folder_with(tmp_path, 1, tokenizer=tiny.tokenizer())
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": "</s>"}))
    with pytest.raises(ModelFolderError, match='eos_token_id is "</s>", expected an id or a list'):
        load_special_ids(folder, tiny.tokenizer())


def test_the_tokenizers_own_end_token_is_one_although_turns_end_with_another(tmp_path):
    tokenizer = chat_families.gemma()
    eos, turn = ids(tokenizer, "<eos>", "<end_of_turn>")
    assert special_ids(tokenizer) == SpecialIds(eos=turn, pad=turn, others=(eos,))
    assert load_special_ids(folder_with(tmp_path, 1, tokenizer=tokenizer), tokenizer).stops == (
        turn,
        eos,
    )


@pytest.mark.parametrize("family", [*chat_families.FAMILIES, chat_families.gpt2, tiny.tokenizer])
def test_padding_is_an_id_that_the_model_has_whether_or_not_the_tokenizer_has_one(family):
    tokenizer = family()
    assert special_ids(tokenizer).pad in range(len(tokenizer))


def test_a_folder_says_where_to_stop_to_whoever_loads_it(tmp_path):
    """A base model that names its own end only, with a template whose turns end otherwise."""
    tokenizer = chat_families.chatml()
    end, turn = ids(tokenizer, "<|endoftext|>", "<|im_end|>")
    folder = folder_with(tmp_path, end, tokenizer=tokenizer)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.7}))
    write_stops(folder, load_special_ids(folder, tokenizer))
    config = GenerationConfig.from_pretrained(folder)
    assert config.eos_token_id == [turn, end]
    assert config.temperature == 0.7
    assert not getattr(config, "_from_model_config", False)
    again = path.read_bytes()
    write_stops(folder, load_special_ids(folder, tokenizer))
    assert path.read_bytes() == again


def test_a_folder_that_says_so_already_keeps_its_bytes(tmp_path):
    folder = folder_with(tmp_path, tiny.EOS, tokenizer=tiny.tokenizer())
    before = (folder / "generation_config.json").read_bytes()
    write_stops(folder, load_special_ids(folder, tiny.tokenizer()))
    assert (folder / "generation_config.json").read_bytes() == before


def test_a_damaged_generation_config_is_named(tmp_path):
    folder = folder_with(tmp_path, 1, tokenizer=tiny.tokenizer())
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelFolderError, match="cannot be loaded"):
        load_special_ids(folder, tiny.tokenizer())

"""A served policy reads a prompt as training does, without this project's code."""

import copy

import pytest
import torch
from mlflow.exceptions import MlflowException
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from rlhf.chat import encode_prompt
from tasks.tracking.served_policy import ServedPolicy
from tests.tiny import LINES, beginning_with, llama, tokenizer

DATED = (
    "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}one day{% endif %}"
    "{{ messages[0].content }}"
)


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8}


def dated() -> PreTrainedTokenizerBase:
    made = copy.deepcopy(tokenizer())
    made.chat_template = DATED
    return made


@pytest.mark.parametrize(
    "words",
    [tokenizer(), dated(), beginning_with("<s>"), beginning_with("<s>", "{{ bos_token }} hi")],
    ids=["embedded", "dated", "base model", "chat model"],
)
def test_a_prompt_has_the_ids_that_it_had_in_training(words: PreTrainedTokenizerBase) -> None:
    for prompt in ("hi hi", "<s> hi", LINES[0]):
        assert ServedPolicy(llama(), words)._encode(prompt) == encode_prompt(words, prompt)


def test_a_response_ends_at_any_of_the_ids_that_the_folder_names() -> None:
    """Asked for the likeliest token, the model says the same one again and again."""
    lm = llama(vocabulary=len(tokenizer()))
    asked = {"prompt": "Kim", "temperature": 0, "max_tokens": 5}
    whole = ServedPolicy(lm, tokenizer()).predict(asked, SAMPLING)
    assert whole["usage"]["completion_tokens"] == 5
    ids = lm.generate(
        torch.tensor([encode_prompt(tokenizer(), "Kim")]), do_sample=False, max_new_tokens=5
    )[0]
    lm.generation_config.eos_token_id = [int(tokenizer().eos_token_id), int(ids[-4])]
    found = ServedPolicy(lm, tokenizer()).predict(asked, SAMPLING)
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] <= 2


def test_a_template_sees_no_date() -> None:
    ids = ServedPolicy(llama(), dated())._encode("Kim")
    assert tokenizer().decode(ids) == "one dayKim"


def untrained(family: str, **sizes: int) -> ServedPolicy:
    """A policy of another family, with no end token, so that only a limit ends a response."""
    words = tokenizer()
    config = AutoConfig.for_model(family, **sizes, vocab_size=len(words), eos_token_id=None)
    return ServedPolicy(AutoModelForCausalLM.from_config(config).eval(), words)


def test_a_model_whose_config_names_no_end_of_its_positions_responds() -> None:
    served = untrained("bloom", hidden_size=16, n_layer=1, n_head=2)
    found = served.predict({"prompt": "Kim", **SAMPLING})
    assert found["usage"]["completion_tokens"] == SAMPLING["max_tokens"]


def test_mpt_names_the_end_of_its_positions_in_its_own_way() -> None:
    served = untrained("mpt", d_model=16, n_layers=1, n_heads=2, max_seq_len=7)
    found = served.predict({"prompt": "Kim", **SAMPLING})
    assert found["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"temperature": "hot"}, "temperature: expected 0 or a number from 1e-06 on, found 'hot'"),
        ({"temperature": True}, "temperature: expected 0 or a number from 1e-06 on, found True"),
        ({"temperature": 1e-45}, "temperature: expected 0 or a number from 1e-06 on, found 1e-45"),
        ({"temperature": float("inf")}, "temperature: expected 0 or a number from 1e-06 on, found"),
        ({"top_p": "x"}, "top_p: expected a number above 0 and at most 1, found 'x'"),
        ({"max_tokens": 2.5}, "max_tokens: expected an integer from 1 on, found 2.5"),
        ({"max_tokens": "3"}, "max_tokens: expected an integer from 1 on, found '3'"),
        ({"prompt": "a \ud800"}, "expected text, found half a character in '<|user|>a"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    asked: dict[str, object], words: str
) -> None:
    words_of_it = tokenizer()
    served = ServedPolicy(llama(vocabulary=len(words_of_it)), words_of_it)
    with pytest.raises(MlflowException) as refused:
        served.predict({"prompt": "Kim", **asked}, SAMPLING)
    assert words in str(refused.value)
    assert refused.value.get_http_status_code() == 400


def test_the_least_temperature_above_0_takes_the_likeliest_token() -> None:
    served = ServedPolicy(llama(vocabulary=len(tokenizer())), tokenizer())
    texts = [
        served.predict({"prompt": "Kim", "temperature": temperature}, SAMPLING)["choices"]
        for temperature in (0, 1e-6)
    ]
    assert texts[0] == texts[1]


def test_what_the_chat_template_refuses_is_refused_in_its_words() -> None:
    made = copy.deepcopy(tokenizer())
    made.chat_template = "{{ raise_exception('roles have to alternate') }}"
    with pytest.raises(MlflowException, match="refuses this: roles have to alternate") as refused:
        ServedPolicy(llama(), made).predict({"prompt": "Kim"}, SAMPLING)
    assert refused.value.get_http_status_code() == 400

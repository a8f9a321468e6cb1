"""A served policy reads a prompt as training does, without this project's code."""

import copy

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf.chat import encode_prompt
from tasks.tracking.served_policy import ServedPolicy
from tests.tiny import LINES, beginning_with, llama, tokenizer

DATED = (
    "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}one day{% endif %}"
    "{{ messages[0].content }}"
)


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


def test_a_template_sees_no_date() -> None:
    ids = ServedPolicy(llama(), dated())._encode("Kim")
    assert tokenizer().decode(ids) == "one dayKim"

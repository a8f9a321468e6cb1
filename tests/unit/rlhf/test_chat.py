"""Prompts and answers as token ids, and the tokenizers that are refused."""

import copy

import pytest
from tokenizers import Tokenizer, decoders, processors
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import Metaspace, WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from rlhf.chat import (
    TokenizerError,
    check_tokenizer,
    decode_response,
    encode_prompt,
    encode_response,
    end_id,
    unwritten_roles,
)
from rlhf.scoring import Encoder
from rlhf.sft import encode_examples
from tests import chat_families
from tests.tiny import LINES, beginning_with, tokenizer


def changed(**changes):
    result = copy.deepcopy(tokenizer())
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def test_a_tokenizer_with_which_no_response_can_end_is_refused():
    mute = changed(eos_token=None, chat_template=None)
    with pytest.raises(TokenizerError, match=r"my/model: .* no end-of-sequence token"):
        check_tokenizer(mute, source="my/model")
    unsaid = changed(eos_token=None, chat_template="{{ messages[-1].content }}")
    with pytest.raises(TokenizerError, match="no special token behind an assistant's turn"):
        end_id(unsaid)


@pytest.mark.parametrize(
    ("family", "end"),
    [
        (chat_families.chatml, "<|im_end|>"),
        (chat_families.smollm, "<|im_end|>"),
        (chat_families.llama_3, "<|eot_id|>"),
        (chat_families.gemma, "<end_of_turn>"),
        (chat_families.mistral, "</s>"),
        (chat_families.gpt2, "<|endoftext|>"),
        (tokenizer, "<|end|>"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_response_ends_with_what_the_template_writes_behind_an_assistants_turn(family, end):
    made = family()
    check_tokenizer(made, source="my/model")
    assert made.convert_ids_to_tokens(end_id(made)) == end
    ids = encode_response(made, "Sam", finished=True)
    assert ids[-1] == end_id(made)
    assert decode_response(made, ids) == "Sam"


def test_the_end_follows_the_template_when_that_changes():
    made = copy.deepcopy(chat_families.chatml())
    assert made.convert_ids_to_tokens(end_id(made)) == "<|im_end|>"
    made.chat_template = None
    assert made.convert_ids_to_tokens(end_id(made)) == "<|endoftext|>"
    # A template that can render prompts only.
    made.chat_template = (
        "{{ messages[0].content if messages|length == 1 else raise_exception('') }}"
    )
    assert made.convert_ids_to_tokens(end_id(made)) == "<|endoftext|>"


def test_the_embedded_tokenizer_passes():
    check_tokenizer(tokenizer(), source="embedded")


def test_a_prompt_follows_the_chat_template_and_ends_where_the_answer_begins():
    ids = encode_prompt(tokenizer(), LINES[0])
    tokens = tokenizer().convert_ids_to_tokens(ids)
    assert (tokens[0], tokens[-2], tokens[-1]) == ("<|user|>", "<|end|>", "<|assistant|>")
    assert tokenizer().decode(ids[1:-2]) == LINES[0]


def test_a_conversation_keeps_its_turns_in_order():
    turns = [
        {"role": "system", "content": "Sam"},
        {"role": "user", "content": "Kim"},
        {"role": "assistant", "content": "new"},
        {"role": "user", "content": "lamp"},
    ]
    tokens = tokenizer().convert_ids_to_tokens(encode_prompt(tokenizer(), turns))
    marks = [token for token in tokens if token.startswith("<|")]
    assert marks == [
        *("<|system|>", "<|end|>", "<|user|>", "<|end|>"),
        *("<|assistant|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"),
    ]


def test_a_tokenizer_without_template_takes_the_prompt_as_it_is():
    plain = changed(chat_template=None)
    assert tokenizer().decode(encode_prompt(plain, LINES[1])) == LINES[1]


def test_a_conversation_without_a_template_is_refused():
    with pytest.raises(TokenizerError, match="needs a tokenizer with a chat template"):
        encode_prompt(changed(chat_template=None), [{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("text", [*LINES, "", "line\n", "Grüße, 東京 🙂", "two  spaces"])
def test_s07_an_answer_is_its_tokens_and_one_end_token(text):
    """Peer defect 8: nothing is stripped and nothing is put before the end token."""
    ids = encode_response(tokenizer(), text, finished=True)
    assert ids.count(tokenizer().eos_token_id) == 1
    assert ids[-1] == tokenizer().eos_token_id
    assert decode_response(tokenizer(), ids) == text
    assert decode_response(tokenizer(), ids[:-1]) == text


@pytest.mark.parametrize("text", [*LINES, "", "cut in the mid"])
def test_s07_a_response_that_was_cut_is_its_tokens_alone(text):
    ids = encode_response(tokenizer(), text, finished=False)
    assert tokenizer().eos_token_id not in ids
    assert ids == encode_response(tokenizer(), text, finished=True)[:-1]


@pytest.mark.parametrize("cleans", [True, False])
def test_a_responses_text_keeps_its_blanks_whatever_the_tokenizer_would_clean(cleans):
    """What older releases of the library wrote into every folder; it ignores it for BPE alone."""
    text = "Bonjour ! Ça va , et vous ?"
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((f"▁{word}", -1.0) for word in text.split())]
    unigram = Tokenizer(Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer, unigram.decoder = Metaspace(), decoders.Metaspace()
    french = PreTrainedTokenizerFast(
        tokenizer_object=unigram, eos_token="</s>", clean_up_tokenization_spaces=cleans
    )
    ids = encode_response(french, text, finished=True)
    assert ids == [*range(2, 2 + len(text.split())), 1]
    assert decode_response(french, ids) == text


def test_a_base_model_gets_the_token_that_its_tokenizer_puts_before_a_text():
    assert encode_prompt(beginning_with("<s>"), "hi hi") == [0, 4, 4]
    assert encode_response(beginning_with("<s>"), "hi", finished=True) == [4, 1]


def test_what_a_tokenizer_puts_behind_a_text_is_not_put_behind_a_prompt():
    """T5's kind ends every text; the response has yet to follow."""
    both = beginning_with("<s>")
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert encode_prompt(both, "hi") == [0, 4]
    assert encode_prompt(both, "") == [0]


def test_a_prompt_that_begins_with_the_token_already_has_it_once():
    assert encode_prompt(beginning_with("<s>"), "<s> hi") == [0, 4]


@pytest.mark.parametrize(
    ("template", "ids"),
    [("{{ bos_token }} {{ messages[0].content }}", [0, 4]), ("{{ messages[0].content }}", [4])],
)
def test_with_a_chat_template_the_template_alone_writes_the_token(template, ids):
    assert encode_prompt(beginning_with("<s>", template), "hi") == ids


def test_the_whole_sequence_of_training_begins_with_it_once():
    words = beginning_with("<s>")
    ((example,), _) = encode_examples(words, [("hi", "hi hi")], 10)
    assert [*example.prompt, *example.response] == [0, 4, 4, 4, 1]
    assert Encoder(words).encode("hi", "hi hi", finished=False) == [0, 4, 4, 4]


@pytest.mark.parametrize("family", [*chat_families.FAMILIES, chat_families.zephyr, tokenizer])
@pytest.mark.parametrize("response", ["good day", "Okay.", "two  blanks", "- 1\n- 2"])
def test_a_response_is_the_tokens_that_it_has_within_the_whole_conversation(family, response):
    """Behind text, SentencePiece puts a blank before a word only where it stands alone."""
    chat = family()
    asked = [{"role": "user", "content": "hello"}]
    answered = [*asked, {"role": "assistant", "content": response}]
    ids = [*encode_prompt(chat, asked), *encode_response(chat, response, finished=True)]
    whole = chat.apply_chat_template(answered, tokenize=False)
    assert ids == chat(whole, add_special_tokens=False)["input_ids"][: len(ids)]
    assert decode_response(chat, encode_response(chat, response, finished=True)) == response


def test_a_response_that_the_text_before_it_would_swallow_stays_as_it_is_alone():
    """Of this tokenizer, a new line and "a" are one token, which no response can begin with."""
    chat = chat_families.zephyr()
    assert chat.convert_ids_to_tokens(chat("x\na")["input_ids"])[-1].endswith("\na")
    ids = encode_response(chat, "a", finished=False)
    assert ids == chat("a", add_special_tokens=False)["input_ids"]


def test_equal_ids_of_all_rows_are_one_object_so_that_rows_take_little_memory():
    """200,000 demonstrations of 500 tokens took 4 GB."""
    named = {"<unk>": 0, "</s>": 1} | {f"w{number}": number for number in range(2, 2000)}
    words = Tokenizer(WordLevel(named, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    many = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    prompt = encode_prompt(many, "w1120 w1121 w1120")
    response = encode_response(many, "w1122 w1121", finished=True)
    assert (prompt, response) == ([1120, 1121, 1120], [1122, 1121, 1])
    assert prompt[0] is prompt[2]
    assert prompt[1] is response[1]


def test_roles_of_which_a_template_leaves_out_what_they_say_are_named():
    roles = ["system", "user", "assistant", "user"]

    assert unwritten_roles(chat_families.chatml(), roles) == []
    assert unwritten_roles(chat_families.gemma(), roles) == []
    deaf = copy.deepcopy(chat_families.chatml())
    deaf.chat_template = chat_families.CHATML.replace(
        "in messages", "in messages if m['role'] != 'system'"
    )
    assert unwritten_roles(deaf, roles) == ["system"]
    assert unwritten_roles(deaf, roles[1:]) == []

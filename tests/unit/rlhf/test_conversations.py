"""Conversations: every assistant's turn is trained, its end included, and nothing else is."""

import copy
from itertools import groupby

import pytest
import torch

from rlhf.chat import TokenizerError, encode_prompt, encode_response
from rlhf.conversations import encode_conversation
from rlhf.sft import encode_examples, packed_response_loss, response_loss
from rlhf.templates import TemplateError
from tests import chat_families, tiny
from tests.chat_families import FAMILIES

ASKED, SAID, AGAIN, THEN = "Sam: where is my parcel?", "On its way.", "Kim: a lamp?", "Hello, Kim."
TURNS = [
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": SAID},
    {"role": "user", "content": AGAIN},
    {"role": "assistant", "content": THEN},
]
CHATML_PARTS = (
    f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n",
    f"{SAID}<|im_end|>",
    f"\n<|im_start|>user\n{AGAIN}<|im_end|>\n<|im_start|>assistant\n",
    f"{THEN}<|im_end|>",
)
USER, MODEL = (f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("user", "assistant"))
PARTS = {
    "chatml": CHATML_PARTS,
    "smollm": CHATML_PARTS,
    "llama_3": (
        f"<|begin_of_text|>{USER}{ASKED}<|eot_id|>{MODEL}",
        f"{SAID}<|eot_id|>",
        f"{USER}{AGAIN}<|eot_id|>{MODEL}",
        f"{THEN}<|eot_id|>",
    ),
    "gemma": (
        f"<bos><start_of_turn>user\n{ASKED}<end_of_turn>\n<start_of_turn>model\n",
        f"{SAID}<end_of_turn>",
        f"\n<start_of_turn>user\n{AGAIN}<end_of_turn>\n<start_of_turn>model\n",
        f"{THEN}<end_of_turn>",
    ),
    "mistral": (
        f"<s>[INST] {ASKED} [/INST]",
        f" {SAID}</s>",
        f"[INST] {AGAIN} [/INST]",
        f" {THEN}</s>",
    ),
}
"""Written out by hand: asked, said, asked again, said then."""
SPECIAL_BETWEEN = [chat_families.chatml, chat_families.smollm, chat_families.llama_3,
                   chat_families.gemma]  # fmt: skip
"""Families whose turns begin behind a special token or a line's end, so that tokens never cross."""
with_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


def with_template(template: str):
    result = copy.deepcopy(chat_families.chatml())
    result.chat_template = template
    return result


def pieces(tokenizer, ids: list[int]) -> str:
    """The text of tokens letter by letter, special ones included."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@with_family
def test_s51_every_turn_of_the_assistant_is_trained_with_its_end_and_nothing_else(family):
    tokenizer, parts = family(), PARTS[family.__name__]
    ids, by_assistant = encode_conversation(tokenizer, TURNS)
    assert ids == tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
    runs = groupby(zip(ids, by_assistant, strict=True), key=lambda pair: pair[1])
    texts = [(trained, pieces(tokenizer, [token for token, _ in run])) for trained, run in runs]
    assert [trained for trained, _ in texts] == [False, True, False, True]
    # SentencePiece's decoder drops the blank that opens a text.
    assert [text.strip(" ") for _, text in texts] == [part.strip(" ") for part in parts]


@with_family
def test_a_conversation_has_the_token_that_begins_a_text_at_most_once(family):
    tokenizer = family()
    ids, _ = encode_conversation(tokenizer, TURNS)
    written = "bos_token" in tokenizer.chat_template
    assert ids.count(tokenizer.bos_token_id) == (
        1 if written else 4 * (family.__name__ == "smollm")
    )
    assert (ids[0] == tokenizer.bos_token_id) == (written or family.__name__ == "smollm")
    assert encode_prompt(tokenizer, TURNS[:1]) == ids[: by_first(tokenizer)]


def by_first(tokenizer) -> int:
    return encode_conversation(tokenizer, TURNS).by_assistant.index(True)


@pytest.mark.parametrize("family", SPECIAL_BETWEEN, ids=lambda family: family.__name__)
@torch.no_grad()
def test_s51_its_loss_is_that_of_each_turn_alone_as_the_response_to_what_went_before(
    family, assert_close
):
    tokenizer = family()
    lm = tiny.llama(vocabulary=len(tokenizer))
    losses = []
    for number in (1, 3):
        prompt = encode_prompt(tokenizer, TURNS[:number])
        response = encode_response(tokenizer, TURNS[number]["content"], finished=True)
        logits = lm(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        losses.append(-logits.log_softmax(-1)[range(len(response)), response])
    expected = torch.cat(losses)
    examples, _ = encode_examples(tokenizer, [TURNS, ("Kim", "lamp")], 1000)
    assert sum(examples[0].trained) == len(expected)
    for padded in (examples[:1], [examples[0], examples[0]]):
        found = response_loss(lm, padded, tokens=len(expected) * len(padded), pad_id=0)
        assert_close(found, expected.mean(), rtol=1e-5, atol=0)
    both = sum(sum(example.trained) for example in examples)
    found = packed_response_loss(lm, examples, tokens=both, width=200)
    assert_close(found, response_loss(lm, examples, tokens=both, pad_id=0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("family", SPECIAL_BETWEEN, ids=lambda family: family.__name__)
def test_a_conversation_of_one_turn_is_its_prompt_with_its_response(family):
    examples, _ = encode_examples(family(), [TURNS[:2], (ASKED, SAID)], 1000)
    assert examples[0].ids == examples[1].ids
    assert examples[0].trained == examples[1].trained


def test_what_follows_the_last_turn_of_the_assistant_is_left_out():
    tokenizer = chat_families.chatml()
    more = [*TURNS, {"role": "user", "content": "Thank you."}]
    assert encode_conversation(tokenizer, more) == encode_conversation(tokenizer, TURNS)


def test_a_template_that_writes_a_turn_otherwise_once_the_conversation_goes_on_is_refused():
    """As Qwen 3's, which takes the thoughts out of earlier turns."""
    thinking = with_template(chat_families.THINKING)
    with pytest.raises(TokenizerError) as caught:
        encode_conversation(thinking, TURNS)
    assert str(caught.value) == (
        "the chat template writes message 2 of a conversation in another way when the conversation "
        f"goes on (expected '<think>\\n\\n</think>\\n\\n{SAID}<|im_end|>', found "
        f"'{SAID}<|im_end|>\\n<|im_start|>user\\nK'), so it cannot be trained together with later "
        "turns; give each turn as a prompt with its response"
    )
    # Alone, it is the last.
    ids, by_assistant = encode_conversation(thinking, TURNS[:2])
    trained = [token for token, trained in zip(ids, by_assistant, strict=True) if trained]
    assert pieces(thinking, trained) == f"<think>\n\n</think>\n\n{SAID}<|im_end|>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ messages|length }}{{ messages[0].content }}",
            "does not write message 2 of a conversation behind the prompt for it",
        ),
        (
            "{% for m in messages %}{{ m.content }}\n{% endfor %}",
            "writes no <|endoftext|> behind message 2",
        ),
        (None, "needs a tokenizer with a chat template"),
    ],
)
def test_a_template_from_which_no_end_could_be_learnt_is_refused(template, message):
    with pytest.raises(TokenizerError) as caught:
        encode_conversation(with_template(template), TURNS)
    assert message in str(caught.value)


def test_a_template_that_fails_says_why():
    with pytest.raises(TemplateError, match="roles must alternate"):
        encode_conversation(with_template("{{ raise_exception('roles must alternate') }}"), TURNS)


def test_a_conversation_in_which_nobody_responds_is_refused():
    with pytest.raises(TokenizerError, match="no assistant's turn"):
        encode_conversation(chat_families.chatml(), TURNS[:1])

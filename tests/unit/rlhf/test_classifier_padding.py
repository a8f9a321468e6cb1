"""A reward model's folder gives the same scores in transformers, whatever the padding."""

import copy

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf.chat import end_id
from rlhf.classifier_padding import set_padding
from rlhf.classifiers import PAD, same_tokens
from rlhf.model_folders import save_model
from rlhf.scoring import Encoder, score_rows
from tests import chat_families, tiny
from tests.tiny import COMPUTE

SIDES = [
    ("Sam: where is my parcel?", "It left on Monday."),
    ("Kim", "I am sorry, Kim."),
    ("a", "b"),
]


@pytest.mark.parametrize(
    ("family", "pad"),
    [
        (chat_families.smollm, "<|endoftext|>"),
        (chat_families.llama_3, "<|end_of_text|>"),
        (chat_families.mistral, "<unk>"),
        (chat_families.gemma, "<pad>"),
        (chat_families.chatml, "<|endoftext|>"),
        (chat_families.gpt2, PAD),
        (tiny.tokenizer, "<|pad|>"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@torch.no_grad()
def test_s01_transformers_reads_the_score_where_we_do_whatever_the_pad_token(
    tmp_path, assert_close, family, pad
):
    tokenizer = copy.deepcopy(family())
    vocabulary = len(tokenizer)
    model = tiny.reward_model(vocabulary=vocabulary)
    model.classifier.config.pad_token_id = tokenizer.eos_token_id
    encoder = Encoder(tokenizer)
    rows = [
        encoder.encode(*side, finished=finished) for side in SIDES for finished in (True, False)
    ]
    expected = score_rows(model, rows, pad_id=encoder.pad_id, compute=COMPUTE)
    assert {row[-1] for row in rows[::2]} == {end_id(tokenizer)}

    set_padding(tokenizer, [model])
    assert score_rows(model, rows, pad_id=encoder.pad_id, compute=COMPUTE) == expected
    save_model(model.classifier, tmp_path)
    tokenizer.save_pretrained(tmp_path)

    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.pad_token == pad
    assert len(loaded) == vocabulary + (family is chat_families.gpt2)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for side in ("right", "left"):
        batch = loaded.pad({"input_ids": rows}, padding_side=side, return_tensors="pt")
        places = (batch["attention_mask"].cumsum(1) - 1).clamp_min(0)
        found = theirs(batch["input_ids"], batch["attention_mask"], position_ids=places)
        assert_close(found.logits.squeeze(1), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_room_for_a_new_token_changes_no_other_weight():
    tokenizer = copy.deepcopy(chat_families.gpt2())
    model = tiny.reward_model(vocabulary=len(tokenizer))
    before = model.classifier.get_input_embeddings().weight.clone()
    set_padding(tokenizer, [model])
    after = model.classifier.get_input_embeddings().weight
    assert torch.equal(after[:-1], before)
    assert after[-1].count_nonzero() == 0


def test_a_folder_with_a_pad_token_of_its_own_stays_as_it_is():
    tokenizer, model = copy.deepcopy(tiny.tokenizer()), tiny.reward_model(vocabulary=300)
    before = copy.deepcopy(model.classifier.config.to_dict())
    set_padding(tokenizer, [model])
    assert model.classifier.config.to_dict() == before
    assert tokenizer.get_vocab() == tiny.tokenizer().get_vocab()


@pytest.mark.parametrize(
    "family",
    [
        chat_families.smollm, chat_families.llama_3, chat_families.mistral, chat_families.gemma,
        chat_families.chatml, chat_families.gpt2, tiny.tokenizer,
    ],
)  # fmt: skip
def test_a_reward_model_of_ours_has_the_policys_tokens_whatever_its_pad_token(tmp_path, family):
    """As `reward.model` it read text for the added one, and no value model could start from it."""
    tokenizer = copy.deepcopy(family())
    set_padding(tokenizer, [tiny.reward_model(vocabulary=len(tokenizer))])
    tokenizer.save_pretrained(tmp_path)
    assert same_tokens(AutoTokenizer.from_pretrained(tmp_path), family())

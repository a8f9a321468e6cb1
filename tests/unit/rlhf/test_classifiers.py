"""Reward models of others: their own words, their own ids, one label or two."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from rlhf.chat import TokenizerError
from rlhf.classifiers import (
    TextEncoder,
    how_it_reads,
    load_classifier,
    load_text_encoder,
    same_tokens,
)
from rlhf.ensembles import load_scorer
from rlhf.model_folders import ModelFolderError
from rlhf.pretrain import train_tokenizer
from rlhf.scoring import score_rows
from tests import tiny

CPU = torch.device("cpu")
OTHER_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} ;{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    tiny.classifier().save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    return tmp_path


def with_template(template: str | None):
    tokenizer = train_tokenizer(tiny.LINES, 300)
    tokenizer.chat_template = template
    return tokenizer


def test_a_conversation_is_rendered_as_the_models_own_template_has_it():
    tokenizer = with_template(OTHER_TEMPLATE)
    encoder = TextEncoder(tokenizer)
    whole = encoder.encode("Where?", "Here.", finished=True)
    assert tokenizer.decode(whole) == "[user] Where? ;[assistant] Here. ;"
    cut = encoder.encode("Where?", "Here.", finished=False)
    assert tokenizer.decode(cut) == "[user] Where? ;[assistant] Here."
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Where?"}]
    assert tokenizer.decode(encoder.encode(turns, "Here.", finished=True)) == (
        "[system] Be kind. ;[user] Where? ;[assistant] Here. ;"
    )


def test_without_a_template_prompt_and_response_are_a_pair_of_texts():
    tokenizer = with_template(None)
    encoder = TextEncoder(tokenizer)
    assert (
        encoder.encode("Where?", "Here.", finished=True)
        == tokenizer("Where?", "Here.")["input_ids"]
    )
    with pytest.raises(TokenizerError, match="messages needs a tokenizer with a chat template"):
        encoder.encode([{"role": "user", "content": "Where?"}], "Here.", finished=True)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_decoder_is_read_at_its_last_token_whatever_pads_the_rows(tmp_path: Path, labels: int):
    model = tiny.classifier(labels=labels)
    model.save_pretrained(tmp_path)
    scorer = load_classifier(tmp_path, CPU)
    rows = [[5, 6, 7], [8, 9, 10, 11, 12, 1, 1], [4]]
    expected = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            # One row at a time, so that no padding is involved, read from the head by hand.
            logits = model.score(model.model(ids).last_hidden_state[0, -1])
        expected.append(float(logits[-1] - logits[0]) if labels == 2 else float(logits[0]))
    found = score_rows(scorer, rows, pad_id=1, compute=tiny.COMPUTE)
    assert found == pytest.approx(expected, abs=1e-5)


def test_an_encoder_is_called_as_it_is(tmp_path: Path):
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=12, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    scorer = load_classifier(tmp_path, CPU)
    rows = [[5, 6, 7], [8, 9, 10, 11]]
    with torch.no_grad():
        expected = [float(model(torch.tensor([row])).logits[0, 0]) for row in rows]
    assert score_rows(scorer, rows, pad_id=0, compute=tiny.COMPUTE) == pytest.approx(
        expected, abs=1e-5
    )
    with pytest.raises(ModelFolderError, match="reads at most 12 tokens, found 13"):
        score_rows(scorer, [[1] * 13], pad_id=0, compute=tiny.COMPUTE)


def test_a_folder_with_other_labels_or_without_a_head_is_refused(tmp_path: Path):
    tiny.classifier(labels=3).save_pretrained(tmp_path / "three")
    tiny.llama().save_pretrained(tmp_path / "policy")
    with pytest.raises(ModelFolderError, match="three: a classifier of 3 labels"):
        load_classifier(tmp_path / "three", CPU)
    with pytest.raises(ModelFolderError, match=r"policy: expected a sequence .* score\.weight"):
        load_classifier(tmp_path / "policy", CPU)


def test_the_two_labels_are_named(tmp_path: Path):
    config = LlamaConfig(num_labels=2, id2label={0: "worse", 1: "better"})
    assert how_it_reads(tmp_path, config).endswith(
        "of its two labels, the score is the logit of better less that of worse"
    )


def test_tokens_are_the_same_only_where_vocabulary_rules_and_template_are():
    ours = tiny.tokenizer()
    assert same_tokens(ours, train_tokenizer(tiny.LINES, 300))
    assert not same_tokens(ours, train_tokenizer(tiny.LINES, 299))
    assert not same_tokens(ours, with_template(OTHER_TEMPLATE))


def test_a_saved_one_comes_back_as_it_was_with_its_normaliser(plain: Path):
    config = json.loads((plain / "config.json").read_text())
    config |= {"score_mean": 0.25, "score_std": 2.0, "reads_text": True}
    (plain / "config.json").write_text(json.dumps(config))
    row = load_text_encoder(plain).encode("Where?", "Here.", finished=True)
    raw, normalised = (
        score_rows(model, [row], pad_id=0, compute=tiny.COMPUTE)[0]
        for model in (load_classifier(plain, CPU), load_scorer(plain, CPU))
    )
    bare = LlamaForSequenceClassification.from_pretrained(plain).eval()
    with torch.no_grad():
        logit = float(bare(torch.tensor([row])).logits[0, 0])
    assert raw == normalised == pytest.approx((logit - 0.25) / 2.0, abs=1e-5)

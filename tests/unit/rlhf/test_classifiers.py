"""Reward models of others: their own words, their own ids, one label or two."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from rlhf.chat import TokenizerError
from rlhf.classifiers import (
    Classifier,
    TextEncoder,
    how_it_reads,
    load_classifier,
    load_text_encoder,
    longest_of,
    same_tokens,
)
from rlhf.compute import Compute
from rlhf.ensembles import load_scorer
from rlhf.frozen import freeze
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


def encoder(kind: str, **settings: object):
    """A classifier that is no decoder, of few and large weights."""
    sizes = {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 12, "num_labels": 1,
        "pad_token_id": 1, "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes | settings)
    return AutoModelForSequenceClassification.from_config(config).eval()


def words_in_pairs() -> PreTrainedTokenizerFast:
    """A tokenizer of BERT's kind, which says which of two texts a token is from."""
    known = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "where", "here", "there", "now"]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    given = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=given, **names)


def test_an_encoder_is_called_as_it_is(tmp_path: Path):
    model = encoder("bert")
    model.save_pretrained(tmp_path)
    words_in_pairs().save_pretrained(tmp_path)
    scorer = load_classifier(tmp_path, CPU)
    rows = [[5, 6, 7], [8, 9, 10, 11]]
    with torch.no_grad():
        expected = [float(model(torch.tensor([row])).logits[0, 0]) for row in rows]
    assert score_rows(scorer, rows, pad_id=0, compute=tiny.COMPUTE) == pytest.approx(
        expected, abs=1e-5
    )
    with pytest.raises(ModelFolderError, match="reads at most 12 tokens, found 13"):
        score_rows(scorer, [[1] * 13], pad_id=0, compute=tiny.COMPUTE)


TWO_TEXTS = ["bert", "electra", "albert"]
"""Kinds that are told."""


@pytest.mark.parametrize("kind", [*TWO_TEXTS, "deberta-v2", "distilbert"])
@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }} {% endfor %}"])
def test_an_encoder_is_told_which_of_two_texts_is_the_response(
    tmp_path: Path, kind: str, template: str | None
):
    model, tokenizer = encoder(kind), words_in_pairs()
    tokenizer.chat_template = template
    if kind == "distilbert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [("where", "here there"), ("where now where", "now"), ("now", "here [SEP] now")]
    expected, bare = [], []
    for prompt, response in texts:
        asked = (prompt, response) if template is None else (f"{prompt} {response}",)
        given = tokenizer(*asked, return_tensors="pt", add_special_tokens=template is None)
        with torch.no_grad():
            expected.append(float(model(**given).logits[0, 0]))
            bare.append(float(model(given["input_ids"]).logits[0, 0]))

    text = load_text_encoder(tmp_path)
    rows = [text.encode(*pair, finished=True) for pair in texts]
    found = score_rows(
        load_classifier(tmp_path, CPU), rows, pad_id=text.pad_id, compute=tiny.COMPUTE
    )

    assert found == pytest.approx(expected, abs=1e-5)
    assert (found != pytest.approx(bare, abs=1e-2)) == (template is None and kind in TWO_TEXTS)


@pytest.mark.parametrize(
    "kind",
    ["bert", "camembert", "data2vec-text", "distilbert", "ibert", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"],
)  # fmt: skip
def test_what_an_encoder_can_read_is_what_it_has_positions_for(kind: str):
    model = encoder(kind)
    longest = longest_of(model.config)
    assert longest is not None
    model(torch.tensor([[5] * longest]))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.tensor([[5] * (longest + 1)]))


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "deberta-v2"])
@torch.no_grad()
def test_the_head_of_an_encoder_is_float32_below_bfloat16(kind: str):
    """As it is of a decoder: what it makes of the trunk's states is the same without autocast."""
    compute = Compute(torch.device("cpu"), "bfloat16")
    classifier = freeze(encoder(kind), compute)
    heads = [part for part in classifier.children() if part is not classifier.base_model]
    read: list[torch.Tensor] = []
    hook = heads[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    with compute.autocast():
        found = Classifier(classifier).raw_scores(ids, torch.ones_like(ids, dtype=torch.bool))
    hook.remove()
    expected = read[0].float()
    for part in heads:
        expected = part(expected)
        if kind == "distilbert" and part is classifier.pre_classifier:
            expected = expected.relu()
    assert (found.to(torch.bfloat16) != found).all()
    assert torch.equal(found, expected.squeeze(-1))


def test_relative_positions_have_no_end(tmp_path: Path):
    """DeBERTa of the third version, whose config has the length that it was trained with."""
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4}
    model = encoder("deberta-v2", position_biased_input=False, **relative)
    model.save_pretrained(tmp_path)
    words_in_pairs().save_pretrained(tmp_path)
    row = [5, 6, 7, 8] * 5
    with torch.no_grad():
        expected = float(model(torch.tensor([row])).logits[0, 0])
    (found,) = score_rows(load_classifier(tmp_path, CPU), [row], pad_id=1, compute=tiny.COMPUTE)
    assert found == pytest.approx(expected, abs=1e-5)


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

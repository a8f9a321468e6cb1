"""The tiny world: models of a few thousand weights that make every test a matter of milliseconds.

Two vocabularies. The one of *bare ids* has 16 tokens and no text: `PAD`, `EOS` and 14 letters, for
whatever concerns tensors only. The one with *text* is a byte-level tokenizer trained on `LINES`.
Weights depend on the seed alone. `spread` multiplies the initial deviation of 0.02, at which every
model says nearly the same of every token.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from rlhf.compute import Compute
from rlhf.pretrain import train_tokenizer
from rlhf.reward_models import RewardModel
from rlhf.special_ids import SpecialIds

PAD, EOS, VOCABULARY = 0, 1, 16
TOKENS = SpecialIds(eos=EOS, pad=PAD)
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [4], [3, 2, 13, 14, 15, 5, 6]]
Model = TypeVar("Model", bound=PreTrainedModel)

COMPUTE = Compute(torch.device("cpu"), "float32")

LINES = (
    "Sam: where is my parcel?",
    "It left on Monday and comes tomorrow.",
    "Kim: my lamp is broken, and I want a new one.",
    "I am sorry, Kim. A new lamp is on its way.",
)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the world with text; to be read only."""
    return train_tokenizer(LINES, 300)


def llama(seed: int = 0, vocabulary: int = VOCABULARY, spread: float = 5.0) -> LlamaForCausalLM:
    """Two layers of width 32, tied embeddings."""
    return _drawn(lambda: LlamaForCausalLM(_llama_config(vocabulary, spread)), seed)


def gpt2(
    seed: int = 0, vocabulary: int = VOCABULARY, spread: float = 5.0, dropout: float = 0.0
) -> GPT2LMHeadModel:
    """The same size with learned positions, the second architecture."""
    return _drawn(lambda: GPT2LMHeadModel(_gpt2_config(vocabulary, spread, dropout)), seed)


def reward_model(seed: int = 7, vocabulary: int = VOCABULARY, spread: float = 5.0) -> RewardModel:
    """A reward model with random weights, not yet normalised."""
    config = _llama_config(vocabulary, spread)
    return RewardModel(_drawn(lambda: LlamaForSequenceClassification(config), seed)).eval()


def classifier(seed: int = 7, labels: int = 1) -> LlamaForSequenceClassification:
    """A plain sequence classifier on the world with text, without a normaliser."""
    config = _llama_config(len(tokenizer()), 5.0)
    config.num_labels = labels
    return _drawn(lambda: LlamaForSequenceClassification(config), seed)


def gpt2_reward_model(seed: int = 7) -> RewardModel:
    """The same on GPT-2."""
    config = _gpt2_config(VOCABULARY, 5.0, 0.0)
    return RewardModel(_drawn(lambda: GPT2ForSequenceClassification(config), seed)).eval()


def share_of_token_reward_model(token: int, *, gain: float = 10.0) -> RewardModel:
    """A reward model that scores the share of one token in prompt and answer, times `gain`.

    Made by hand. Width 8: dimension 0 of an embedding marks the token, dimension 1 is a constant so
    large that no norm ever changes by more than 0.1 %. Queries and keys are zero, so attention is
    the plain mean over all tokens so far; it writes the mean of dimension 0 to dimension 2, which
    the head reads. The MLP is zero.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=128,
        num_labels=1,
        pad_token_id=PAD,
        rms_norm_eps=1e-12,
    )
    model = _drawn(lambda: LlamaForSequenceClassification(config), 0)
    for weight in model.parameters():
        if weight.ndim == 2:
            nn.init.zeros_(weight)
    constant = 40.0
    embeddings = model.get_input_embeddings().weight.data
    embeddings[:, 1] = constant
    embeddings[token, 0] = 1.0
    layer = model.model.layers[0]
    layer.self_attn.v_proj.weight.data[0, 0] = 1.0
    layer.self_attn.o_proj.weight.data[2, 0] = 1.0
    root_mean_square = constant / 8**0.5
    model.score.weight.data[0, 2] = gain * root_mean_square**2
    return RewardModel(model).eval()


def _llama_config(vocabulary: int, spread: float) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.02 * spread,
        num_labels=1,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


def _gpt2_config(vocabulary: int, spread: float, dropout: float) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        initializer_range=0.02 * spread,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        num_labels=1,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


def _drawn(build: Callable[[], Model], seed: int) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def beginning_with(bos: str, template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of Llama's kind: its post-processor puts a token before every text."""
    words = Tokenizer(
        models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3, "hi": 4}, "<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=bos,
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    made.chat_template = template
    return made

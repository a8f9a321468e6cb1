"""The embedded base model: a byte-level BPE tokenizer and a small Llama, trained from nothing.

For the default experiment only; a real base model comes from a folder in Hugging Face format.
Documents are packed end to end into sequences of equal length and trained with the plain
next-token loss, as in ordinary pre-training.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf.compute import Compute, sent
from rlhf.language_model_loss import language_model_loss
from rlhf.logits import language_model_head, sequence_hidden
from rlhf.optimisers import Training
from rlhf.params.base import EmbeddedModelParams
from rlhf.seeding import Seeds
from rlhf.templates import EMBEDDED_TEMPLATE

PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"


@dataclass(frozen=True, slots=True)
class PretrainMetrics:
    """One step of pre-training."""

    loss: float
    grad_norm: float
    tokens: int


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with chat template, in which a word has the same tokens anywhere.

    The pre-tokenizer adds a space to the first word, so that "Sam" and " Sam" are one token; the
    decoder removes it again.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, END, USER, ASSISTANT, SYSTEM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=EMBEDDED_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    params: EmbeddedModelParams, tokenizer: PreTrainedTokenizerFast, seeds: Seeds
) -> LlamaForCausalLM:
    """A randomly initialised Llama with tied embeddings; the same seed gives the same weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=params.mlp_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        max_position_embeddings=params.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": params.rope_theta},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.named("base", "weights"))
        model = LlamaForCausalLM(config)
    return model.eval()


def pack_documents(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[str], sequence_length: int
) -> Tensor:
    """Documents joined by the end token and cut into rows of `sequence_length + 1` ids.

    Neighbouring rows share one token, so that every token is predicted once; a last piece that
    does not fill a row is left out.
    """
    stream: list[int] = []
    for ids in tokenizer(list(documents), add_special_tokens=False)["input_ids"]:
        stream += [*ids, tokenizer.eos_token_id]
    rows = (len(stream) - 1) // sequence_length
    starts = range(0, rows * sequence_length, sequence_length)
    return torch.tensor([stream[start : start + sequence_length + 1] for start in starts])


def train(
    training: Training,
    rows: Tensor,
    params: EmbeddedModelParams,
    *,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[PretrainMetrics]:
    """Train on packed rows (num, length + 1); epochs are reshuffled, the loop yields each step."""
    model = training.model
    assert isinstance(model, LlamaForCausalLM)
    per_epoch = len(rows) // params.batch_size
    for step in range(training.step, params.steps):
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(rows), generator=seeds.torch("base", "order", epoch))
        chosen = order[index * params.batch_size : (index + 1) * params.batch_size]
        batch = sent(rows[chosen], compute.device)
        inputs, labels = batch[:, :-1], batch[:, 1:]
        everywhere = torch.ones(inputs.shape, dtype=torch.bool)
        with compute.autocast():
            hidden = sequence_hidden(model.base_model, inputs, everywhere)
            loss = language_model_loss(language_model_head(model, hidden), labels, everywhere)
        loss.backward()
        (total,), (norm,) = training.advance([[loss]], 1, params.optimiser, params.steps)
        yield PretrainMetrics(total, norm, inputs.numel())
    training.require_finite_weights()

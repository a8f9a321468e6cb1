"""Tokenizers in the manner of the families that people bring, each with a template like theirs.

Written here from what those templates do; the vocabularies are tiny. Between them: turns that end
with another token than `eos_token` (ChatML on a base model, Gemma), with `eos_token` (Mistral), a
template that writes BOS itself (Llama 3, Gemma, Mistral), content that is trimmed (Llama 3, Gemma),
turns that are set off by plain text and spaces (Mistral), and a template that writes the last turn
in another way than earlier ones (thinking).
"""

import copy
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny import LINES

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}"
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>"
    "{{ '\n\n' + m['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}"
    "{{ '\n' + m['content'] | trim }}<end_of_turn>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model{{ '\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] }}<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


@cache
def chatml() -> PreTrainedTokenizerFast:
    """Qwen 2.5's base model: a ChatML template, but `<|endoftext|>` as end token and padding."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return _byte_level(special, CHATML, eos_token=special[0], pad_token=special[0])


@cache
def smollm() -> PreTrainedTokenizerFast:
    """SmolLM2-Instruct as published: `<|im_end|>` is the end token and the padding."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    names = {"bos_token": special[1], "eos_token": special[2], "unk_token": special[0]}
    return _byte_level(special, CHATML, pad_token=special[2], **names)


@cache
def llama_3() -> PreTrainedTokenizerFast:
    """No pad token; BOS from the template and, for plain text, from the tokenizer."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
               "<|eot_id|>", "<|eom_id|>"]  # fmt: skip
    made = _byte_level(special, LLAMA_3, bos_token=special[0], eos_token=special[4])
    _begin_with(made, special[0])
    return made


@cache
def gemma() -> PreTrainedTokenizerFast:
    """Turns end with `<end_of_turn>`, which is not the end token; a pad token of its own."""
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    names = {"pad_token": special[0], "eos_token": special[1], "bos_token": special[2]}
    made = _byte_level(special, GEMMA, **names)
    _begin_with(made, special[2])
    return made


@cache
def mistral() -> PreTrainedTokenizerFast:
    """Words with a blank before them, as SentencePiece cuts them; no pad token."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    words.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", "</s>"]
    _train(words, special)
    names = {"unk_token": special[0], "bos_token": special[1], "eos_token": special[2]}
    made = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=MISTRAL, **names)
    _begin_with(made, special[1])
    return made


@cache
def zephyr() -> PreTrainedTokenizerFast:
    """Mistral's words in turns that are set off by plain text, and no blank before an answer."""
    made = copy.deepcopy(mistral())
    made.chat_template = ZEPHYR
    return made


@cache
def gpt2() -> PreTrainedTokenizerFast:
    """One special token for everything, none for padding, no template."""
    end = "<|endoftext|>"
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
    return _byte_level([end], None, **names)


FAMILIES = (chatml, smollm, llama_3, gemma, mistral)
"""Those with a template."""


def _byte_level(special: list[str], template: str | None, **names: str) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    _train(words, special)
    return PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template, **names)


def _train(words: Tokenizer, special: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    spoken = ("user\nassistant\nsystem\nmodel\n", "[INST] hello [/INST] good day")
    words.train_from_iterator([*LINES, *spoken], trainer)


def _begin_with(made: PreTrainedTokenizerFast, bos: str) -> None:
    """Have the tokenizer put BOS before every text, as these families do."""
    pair = [(bos, made.convert_tokens_to_ids(bos))]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=pair
    )

"""Model folders of a few words, such as people bring."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = ["<unk>", "<pad>", "</s>", "<user>", "<assistant>", "<system>"] + [
    f"w{number}" for number in range(60)
]


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special)


def write_chat_model(folder: Path) -> None:
    """A Llama with a chat template, as an instruction model on the hub has it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, pad_token_id=1, eos_token_id=2,
        bos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    chat = tokenizer(eos_token="</s>", pad_token="<pad>")
    chat.chat_template = TEMPLATE
    chat.save_pretrained(folder)


def write_gpt2(folder: Path, **special: str) -> None:
    """A GPT-2: no chat template, and often no padding but the end token."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=64,
        bos_token_id=2, eos_token_id=2,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer(**special).save_pretrained(folder)

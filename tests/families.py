"""A tiny random model of every family of decoders, each with what makes its family special.

Soft caps, scales and windows are so strong that a result without them is another one altogether.
Sizes and ids are those of `tests/tiny.py`.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.tiny import EOS, PAD, VOCABULARY

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": EOS,
}
HEAD = {"head_dim": 8}
WINDOW = {"sliding_window": 4, **HEAD}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}

FAMILIES: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"logit_scale": 0.3, **WINDOW},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "gemma": HEAD,
    "gemma2": {
        "final_logit_softcapping": 0.5,
        "attn_logit_softcapping": 0.3,
        "query_pre_attn_scalar": 8,
        **WINDOW,
    },
    "gemma3_text": {"final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8, **WINDOW},
    "gpt2": GPT2,
    "gpt_neox": {},
    "granite": {
        "logits_scaling": 0.3,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.4,
    },
    "llama": HEAD,
    "mistral": WINDOW,
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "olmo2": {},
    # The larger OPT-350m embeds in half its width, too, and so reads half of it.
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": HEAD,
    "smollm3": {},
}
"""`model_type` -> settings beside SIZES."""

ALIBI = {"alibi": True, "multi_query": True, "new_decoder_architecture": False}
VARIANTS = {"falcon with ALiBi": ("falcon", ALIBI), "bloom": ("bloom", {"n_layer": 2, "n_head": 4})}
"""Decoders without position ids: attention itself falls with the distance."""

EVERY = [*FAMILIES, *VARIANTS]


def model_of(kind: str, **settings: Any) -> PreTrainedModel:
    """A policy of any kind, with these settings beside SIZES."""
    config = AutoConfig.for_model(kind, **SIZES | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def policy(family: str, seed: int = 0) -> PreTrainedModel:
    """A policy of that family."""
    kind, settings = VARIANTS.get(family) or (family, FAMILIES[family])
    config = AutoConfig.for_model(kind, **SIZES | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()

"""How long a row may be, against what the model's own code does with one token more."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf.dialogue import longest_context
from rlhf.positions import (
    PositionsError,
    check_positions,
    steady_rotation,
    table_of_positions,
)

POSITIONS = 12
GPT = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": POSITIONS}
WIDE = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": POSITIONS,
}  # fmt: skip
TABLES = {
    "biogpt": {**WIDE, "intermediate_size": 16},
    "codegen": {**GPT, "n_ctx": POSITIONS, "rotary_dim": 4, "n_head": 4},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": {
        "hidden_size": 16, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]],
        "max_position_embeddings": POSITIONS,
    },
    "gptj": {**GPT, "rotary_dim": 4},
    "mpt": {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": POSITIONS},
    "opt": {**WIDE, "ffn_dim": 16, "word_embed_proj_dim": 16},
}  # fmt: skip
ENDLESS = {
    "bloom": {"hidden_size": 16, "n_layer": 1, "n_head": 2},
    "falcon": {**WIDE, "alibi": True},
    "gpt_neox": {**WIDE, "intermediate_size": 16},
    "llama": {**WIDE, "intermediate_size": 16},
    "phi": {**WIDE, "intermediate_size": 16},
    "qwen2": {**WIDE, "intermediate_size": 16, "num_key_value_heads": 2},
    "xglm": {
        "d_model": 16, "num_layers": 1, "attention_heads": 2, "ffn_dim": 16,
        "max_position_embeddings": POSITIONS,
    },
}  # fmt: skip


def model(family: str) -> PreTrainedModel:
    ids = {"vocab_size": 24, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(family, **(TABLES | ENDLESS)[family], **ids)
    return AutoModelForCausalLM.from_config(config).eval()


def with_pictures() -> PreTrainedModel:
    pictures = {**WIDE, "intermediate_size": 16, "image_size": 28, "patch_size": 14}
    text = {**WIDE, "intermediate_size": 16, "num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model(
        "gemma3",
        text_config={**text, "vocab_size": 24, "model_type": "gemma3_text"},
        vision_config={**pictures, "model_type": "siglip_vision_model"},
        image_token_index=23,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def read(lm: PreTrainedModel, tokens: int) -> None:
    ids = torch.full((1, tokens), 5)
    with torch.no_grad():
        lm(input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.parametrize("family", sorted(TABLES))
def test_a_table_ends_where_the_models_own_code_fails(family: str) -> None:
    lm = model(family)

    assert table_of_positions(lm) == POSITIONS

    read(lm, POSITIONS)
    with pytest.raises((IndexError, RuntimeError)):
        read(lm, POSITIONS + 1)


@pytest.mark.parametrize("family", sorted(ENDLESS))
def test_a_model_without_a_table_reads_on(family: str) -> None:
    lm = model(family)

    assert table_of_positions(lm) is None

    read(lm, POSITIONS + 5)


def test_a_table_of_patches_of_pictures_is_none_of_positions() -> None:
    """Gemma 3 with pictures cuts one into 4,096 patches from 4B on; here into four."""
    lm = with_pictures()
    tables = [name for name, weight in lm.named_parameters() if "position" in name]
    assert [lm.get_parameter(name).shape for name in tables] == [(4, 16)]

    assert table_of_positions(lm) is None
    assert longest_context(lm) == POSITIONS
    check_positions(lm, {"sft.max_tokens": POSITIONS + 5})

    read(lm, POSITIONS + 5)


def test_rows_that_may_be_longer_are_refused_by_their_keys() -> None:
    lm = model("gpt2")
    check_positions(lm, {"sft.max_tokens": POSITIONS})

    with pytest.raises(PositionsError) as refused:
        check_positions(lm, {"sft.max_tokens": POSITIONS, "a + b": POSITIONS + 1})

    assert str(refused.value) == (
        "the model has positions for 12 tokens, and a + b allows 13; "
        "set their sum to at most 12 (longer rows are left out and counted)"
    )


ROPE = {"rope_theta": 1e4, "factor": 4.0}
PHI = {
    **WIDE, "hidden_size": 32, "intermediate_size": 16, "num_key_value_heads": 2,
    "max_position_embeddings": 4 * POSITIONS, "original_max_position_embeddings": POSITIONS,
}  # fmt: skip
LONG = {
    **ROPE, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
}  # fmt: skip
CHANGING = {
    "dynamic": ("llama", {**ENDLESS["llama"], "rope_parameters": {**ROPE, "rope_type": "dynamic"}}),
    "longrope": ("phi3", {**PHI, "rope_parameters": LONG}),
}


@pytest.mark.parametrize("kind", sorted(CHANGING))
def test_rotary_positions_that_change_with_the_longest_row_end_where_they_change(kind: str) -> None:
    family, settings = CHANGING[kind]
    ids = {"vocab_size": 24, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(family, **settings, initializer_range=0.5, **ids)
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(config).eval()

    def beside(tokens: int) -> torch.Tensor:
        """Logits of a row of six tokens in a batch with one of so many."""
        rows = torch.full((2, tokens), 5)
        rows[:, :6] = torch.arange(6, 12)
        mask = torch.ones_like(rows)
        mask[0, 6:] = 0
        with torch.no_grad():
            return lm(input_ids=rows, attention_mask=mask).logits[0, :6]

    assert (beside(POSITIONS) - beside(6)).abs().max() < 1e-5
    assert (beside(POSITIONS + 1) - beside(6)).abs().max() > 1e-3
    assert steady_rotation(lm) == (kind, POSITIONS)
    check_positions(lm, {"sft.max_tokens": POSITIONS})
    words = (
        f"{kind}.* change in rows of more than {POSITIONS} tokens.*set it to at most {POSITIONS}"
    )
    with pytest.raises(PositionsError, match=words):
        check_positions(lm, {"sft.max_tokens": POSITIONS + 1})


@pytest.mark.parametrize("family", sorted(ENDLESS))
def test_other_positions_stay_as_they_are(family: str) -> None:
    assert steady_rotation(model(family)) is None

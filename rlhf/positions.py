"""How many tokens a row may have where a model looks its positions up in a table.

GPT-2, GPT-Neo, GPT-BigCode, GPT-J, CodeGen, OPT and BioGPT have a vector for each position and none
beyond the last; PyTorch then raises a bare IndexError. Most models with rotary positions or ALiBi
have no such end; MPT makes its ALiBi as long as `max_seq_len`.
"""

import re
from collections.abc import Mapping
from typing import cast

from torch import nn
from transformers import PreTrainedModel

TABLE = re.compile(r"wpe|position|pos_emb")
"""What the tables are called in the families above."""


class PositionsError(ValueError):
    """Rows may be longer than the model has positions; the message says which and by how much."""


def table_of_positions(lm: PreTrainedModel) -> int | None:
    """Tokens of the longest row that the model has positions for; None where there is no table."""
    found = []
    for name, module in _reader_of_text(lm).named_modules():
        if hasattr(module, "make_weights"):  # XGLM's table grows with the rows.
            continue
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for key, values in own:
            table = values.ndim == 2 and values.is_floating_point()
            if table and TABLE.search(f"{name}.{key}"):
                # OPT and BioGPT keep their first rows for padding.
                found.append(len(values) - int(getattr(module, "offset", 0)))
    if lm.config.model_type == "mpt":
        found.append(lm.config.max_seq_len)
    return min(found, default=None)


def _reader_of_text(lm: PreTrainedModel) -> nn.Module:
    """The model without its parts for pictures and sound, whose tables are of patches."""
    text_alone = lm.config.get_text_config() is lm.config
    return cast(nn.Module, lm if text_alone else lm.get_decoder())


def beyond_training(lm: PreTrainedModel, lengths: Mapping[str, int]) -> str | None:
    """Which of the lengths (as of `check_positions`) are above the one that a model was made for.

    With rotary positions or ALiBi it takes longer rows and continues them badly.
    """
    known = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
    longer = {keys: tokens for keys, tokens in lengths.items() if known and tokens > known}
    if not longer:
        return None
    allowed = ", ".join(f"{keys} allows {tokens}" for keys, tokens in longer.items())
    return f"the model was made for rows of at most {known} tokens, and {allowed}"


def change_with_length(trunk: nn.Module) -> bool:
    """Whether rotary positions are made anew as rows get longer, by questions to the device."""
    rope = str(getattr(getattr(trunk, "rotary_emb", None), "rope_type", ""))
    return "dynamic" in rope or rope == "longrope"


def steady_rotation(lm: PreTrainedModel) -> tuple[str, int] | None:
    """The kind of rotary positions that change with the longest row of a pass, and up to where not.

    Beyond it a row's logits depend on the rows beside it, and keys in a cache are of another
    rotation than new ones. Of several kinds the one with the shortest rows; None where none change.
    """
    found = []
    for module in lm.modules():
        kinds = getattr(module, "rope_type", None)
        if kinds is None:
            continue
        settings = module.config.rope_parameters
        # Of all layers, or of each type of layers.
        named = {"": kinds} if isinstance(kinds, str) else kinds
        for layers, kind in named.items():
            if kind == "dynamic":
                found.append((kind, int(module.config.max_position_embeddings)))
            elif kind == "longrope":
                own = settings[layers] if layers else settings
                found.append((kind, int(own["original_max_position_embeddings"])))
    return min(found, key=lambda one: one[1], default=None)


def longest_row(section: str, max_prompt_tokens: int, max_new_tokens: int) -> dict[str, int]:
    """The keys by which a section bounds prompts and responses -> tokens of the longest row."""
    keys = f"{section}.max_prompt_tokens + {section}.sampling.max_new_tokens"
    return {keys: max_prompt_tokens + max_new_tokens}


def check_positions(lm: PreTrainedModel, lengths: Mapping[str, int]) -> None:
    """Refuse rows that may be longer than the table, or than the rotation stays the same.

    Args:
        lm: the model.
        lengths: keys of parameters, as in `ppo.max_prompt_tokens + ppo.sampling.max_new_tokens`
            -> tokens of the longest row that they allow.

    Raises:
        PositionsError: one of them allows more than the model has positions for.
    """
    table, rotation = table_of_positions(lm), steady_rotation(lm)
    if table is not None:
        _require(lengths, table, f"the model has positions for {table} tokens")
    if rotation is not None:
        kind, most = rotation
        why = (
            f"the model's rotary positions ({kind}) change in rows of more than {most} tokens, so "
            "that a row's logits depend on the rows beside it"
        )
        _require(lengths, most, why)


def _require(lengths: Mapping[str, int], most: int, why: str) -> None:
    for keys, tokens in lengths.items():
        if tokens > most:
            raise PositionsError(
                f"{why}, and {keys} allows {tokens}; "
                f"set {'it' if '+' not in keys else 'their sum'} to at most {most} (longer rows "
                "are left out and counted)"
            )

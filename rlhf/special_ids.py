"""The two ids with a meaning of their own: the end of a response, and padding."""

from typing import NamedTuple

from transformers import PreTrainedTokenizerBase


class SpecialIds(NamedTuple):
    """What generation, padding and scoring have to know of a vocabulary."""

    eos: int
    pad: int


def special_ids(tokenizer: PreTrainedTokenizerBase) -> SpecialIds:
    """Those of a tokenizer that `load_tokenizer` has checked."""
    assert isinstance(tokenizer.eos_token_id, int)
    assert isinstance(tokenizer.pad_token_id, int)
    return SpecialIds(tokenizer.eos_token_id, tokenizer.pad_token_id)

"""The pad token of a reward model's folder, for other libraries.

We read a score at a row's last real token, by mask. `transformers` reads it at the last token that
is not `config.pad_token_id`: with padding that is the end token, one token early. So a folder gets
a pad token that ends no response, and none of the weights that we train or read changes.
"""

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.chat import end_id
from rlhf.classifiers import PAD
from rlhf.reward_models import RewardModel


def set_padding(tokenizer: PreTrainedTokenizerBase, members: Sequence[RewardModel]) -> None:
    """Name a pad token that ends no response in the tokenizer and in the models' configs.

    The tokenizer's own, if that is one; else a special token that its texts never hold; else a new
    one, with a row of zeros among the embeddings where they have no room.
    """
    if tokenizer.pad_token_id in (None, end_id(tokenizer)):
        tokenizer.add_special_tokens({"pad_token": next(_spare(tokenizer), PAD)})
    for member in members:
        _make_room(member.classifier, tokenizer.pad_token_id)
        member.classifier.config.pad_token_id = tokenizer.pad_token_id


@torch.no_grad()
def _make_room(classifier: PreTrainedModel, pad: int) -> None:
    rows = classifier.get_input_embeddings().weight.shape[0]
    if pad >= rows:
        classifier.resize_token_embeddings(pad + 1, mean_resizing=False)
        classifier.get_input_embeddings().weight[rows:] = 0.0


def _spare(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Special tokens that are in no text: the chat template does not write them either."""
    taken = {end_id(tokenizer), tokenizer.eos_token_id, tokenizer.bos_token_id}
    template = str(tokenizer.chat_template)
    for token, kind in sorted(tokenizer.added_tokens_decoder.items()):
        if kind.special and token not in taken and kind.content not in template:
            yield kind.content

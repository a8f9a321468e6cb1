"""A dialogue with a policy: responses piece by piece, earlier turns remembered where possible.

Drawn as in training and evaluation (`rlhf.generation`). A response comes in pieces of 16, 32, 64
tokens and so on. The prompt is read anew for each, so the first words come early and reading costs
little in all.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.chat import decode_response, encode_prompt
from rlhf.draws import draw_table
from rlhf.generation import sample_responses
from rlhf.named_seeds import named_seed
from rlhf.packed_weights import packed_weights
from rlhf.params.sampling import SamplingParams
from rlhf.positions import table_of_positions
from rlhf.special_ids import SpecialIds
from rlhf.templates import EMBEDDED_TEMPLATE

FIRST_PIECE = 16
"""Tokens of a response's first piece."""
CUT = "\N{REPLACEMENT CHARACTER}"
"""What decoding shows for a character of which only the first bytes have been drawn."""


class TooLongError(ValueError):
    """A message that leaves no room for a response; says how much there is."""


class UnknownWordError(ValueError):
    """A message with a word that the tokenizer knows and the model has no embedding for."""


def longest_context(lm: PreTrainedModel) -> int:
    """Tokens that a prompt and its response may have; of some models there is no end."""
    table = table_of_positions(lm)
    named = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
    return min(table or sys.maxsize, named or sys.maxsize)


class Dialogue:
    """What has been said so far between a person and a policy."""

    def __init__(
        self,
        lm: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: SamplingParams,
        *,
        tokens: SpecialIds,
        seed: int,
    ) -> None:
        """Begin one; two with the same seed draw with the same numbers, turn by turn."""
        self._lm = lm
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._tokens = tokens
        self._seed = seed
        self._turn = 0
        self._messages: list[dict[str, str]] = []
        # The embedded model has learnt from single letters only, and has room for two.
        self.remembers = tokenizer.chat_template not in (None, EMBEDDED_TEMPLATE)

    def reset(self) -> None:
        """Forget all turns so far."""
        self._messages.clear()

    def respond(self, message: str) -> Iterator[str]:
        """The response to a message, in pieces; earlier turns that no longer fit are forgotten.

        They fit while they leave a response its tokens, or half of the context.

        A response that the caller does not read to its end is no turn to remember.

        Raises:
            TooLongError: there is no room for a response.
            UnknownWordError: the message has a word without an embedding.
            TokenizerError, TemplateError: the message cannot be made a prompt.
            NonFiniteError: the policy's weights are broken.
        """
        prompt, room = self._prompt(message)
        self._turn += 1
        draws = draw_table(named_seed(self._seed, "chat", self._turn), [prompt], room)
        ids: list[int] = []
        shown = ""
        for piece in self._pieces(prompt, room, draws):
            ids += piece
            text = decode_response(self._tokenizer, ids)
            if len(text) > len(shown) and not text.endswith(CUT):
                yield text[len(shown) :]
                shown = text
        text = decode_response(self._tokenizer, ids)
        yield text[len(shown) :]
        if self.remembers:
            self._messages.append({"role": "user", "content": message})
            self._messages.append({"role": "assistant", "content": text})

    def _prompt(self, message: str) -> tuple[list[int], int]:
        """Token ids of the turns that fit and of the message, and how long a response may be."""
        longest = self._sampling.max_new_tokens
        limit = longest_context(self._lm)
        kept = list(self._messages)
        while True:
            turns = [*kept, {"role": "user", "content": message}]
            ids = encode_prompt(self._tokenizer, turns if kept else message)
            room = min(longest, limit - len(ids))
            # Half of the context is enough: where all of it may be asked for, nothing would stay.
            if room >= min(longest, limit // 2) or not kept:
                break
            del kept[:2]
        size = self._lm.get_input_embeddings().weight.shape[0]
        if max(ids) >= size:
            word = self._tokenizer.convert_ids_to_tokens(max(ids))
            raise UnknownWordError(f"the model has no embedding for {word}")
        if room < 1:
            raise TooLongError(
                f"the message has {len(ids)} tokens as a prompt; at most {limit - 1} fit"
            )
        self._messages = kept
        return ids, room

    def _pieces(self, prompt: list[int], room: int, draws: torch.Tensor) -> Iterator[list[int]]:
        """Token ids of a response of at most `room` tokens."""
        device = self._lm.device
        done, size = 0, FIRST_PIECE
        seen = list(prompt)
        with packed_weights(self._lm):
            while done < room:
                size = min(size, room - done)
                ids = torch.tensor([seen], device=device)
                drawn = sample_responses(
                    self._lm,
                    ids,
                    torch.ones_like(ids, dtype=torch.bool),
                    replace(
                        self._sampling,
                        min_new_tokens=max(self._sampling.min_new_tokens - done, 0),
                        max_new_tokens=size,
                    ),
                    stop_ids=self._tokens.stops,
                    pad_id=self._tokens.pad,
                    draws=draws[:, done : done + size],
                )
                (piece,) = drawn.rows()
                yield piece
                if bool(drawn.ended[0]):
                    return
                seen += piece
                done, size = done + size, 2 * size

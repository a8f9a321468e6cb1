"""What a model sees of a pair: its tokens, up to the limit used in training."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from preferences.reader import MalformedDataError
from preferences.records import Preference, Prompt

_END = -1
"""Stands for the end token, whose id does not matter here."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """The number of tokens of a pair's longer side, and whether both sides are the same."""

    tokens: int
    same: bool


class TokenLimit:
    """Counts tokens as reward training does, except for the few of a chat template."""

    def __init__(self, folder: Path, limit: int):
        """Takes a model folder with a tokenizer, and the limit for prompt and response together.

        Raises:
            MalformedDataError: the folder has no readable tokenizer.json.
        """
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        # The library raises a bare Exception for any problem with the file.
        except Exception as error:
            raise MalformedDataError([f"{file}: no tokenizer ({error})"], 1) from None
        self._tokenizer.no_truncation()
        self.limit = limit

    def view(self, preference: Preference) -> TokenView:
        """What the model sees of a pair; responses equal within the limit are the same."""
        texts = [*_contents(preference.prompt), preference.chosen, preference.rejected]
        *prompt, chosen, rejected = (
            encoding.ids
            for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)
        )
        before = sum(map(len, prompt))
        chosen = chosen + [_END] * preference.chosen_finished
        rejected = rejected + [_END] * preference.rejected_finished
        room = max(0, self.limit - before)
        return TokenView(
            tokens=before + max(len(chosen), len(rejected)),
            same=chosen[:room] == rejected[:room],
        )


def _contents(prompt: Prompt) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt]

"""What a model sees of a pair: its tokens, up to the limit that it is trained with."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from preferences.reader import MalformedDataError
from preferences.records import Preference, prompt_text


@dataclass(frozen=True, slots=True)
class TokenView:
    """How many tokens the longer side of a pair has, and whether both sides are the same."""

    tokens: int
    same: bool


class TokenLimit:
    """Counts as reward training does, but for the few tokens of a chat template."""

    def __init__(self, folder: Path, limit: int):
        """Takes the tokenizer of a model folder, and the most tokens of prompt and answer.

        Raises:
            MalformedDataError: the folder has no tokenizer.json that can be read.
        """
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        # The library raises a bare Exception for whatever is wrong with the file.
        except Exception as error:
            raise MalformedDataError([f"{file}: no tokenizer ({error})"], 1) from None
        self._tokenizer.no_truncation()
        self.limit = limit

    def view(self, preference: Preference) -> TokenView:
        """What the model sees of a pair; answers are the same if equal within the limit."""
        texts = [prompt_text(preference.prompt), preference.chosen, preference.rejected]
        prompt, chosen, rejected = (
            encoding.ids
            for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)
        )
        room = max(0, self.limit - len(prompt))
        return TokenView(
            # The end token counts.
            tokens=len(prompt) + max(len(chosen), len(rejected)) + 1,
            same=chosen[:room] == rejected[:room],
        )

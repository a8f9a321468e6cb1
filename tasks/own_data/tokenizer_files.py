"""Whether the tokenizer that the library makes of a folder is the one that lies there.

`transformers` chooses a class by the kind of model and fills it with the vocabulary of
`tokenizer.json`. A Qwen 2 gets Qwen's, whatever its folder names: with a vocabulary of another kind
every text loses its blanks, or all of its words, and nothing says so.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROBE = "Where is my parcel? It is 3 days late."


def changed_text(folder: Path, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What the tokenizer does to a text that the folder's own file keeps; None where nothing.

    A file of a few words, which do not know the text, has to give it some token alone.

    Args:
        folder: the model's.
        tokenizer: what the library has made of it.
    """
    if (own := _own(folder / "tokenizer.json")) is None:
        return None
    ids = own.encode(PROBE, add_special_tokens=False).ids
    text = str(own.decode(ids)).strip()
    kept = _back(tokenizer, text)
    if kept.casefold().split() == text.casefold().split():
        if not ids or _ids(tokenizer, PROBE):
            return None
        text, kept = PROBE, ""
    return (
        f"{folder}: transformers makes a {type(tokenizer).__name__} of its tokenizer.json, which "
        f"turns {text!r} into {kept!r}; name the class of the file in tokenizer_config.json "
        '("tokenizer_class": "TokenizersBackend"). A Qwen 2 gets Qwen\'s in any case, so with '
        "another tokenizer it cannot be used"
    )


def _own(path: Path) -> "Tokenizer | None":
    """The tokenizer of the file itself; None without a sound one."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    try:
        return Tokenizer.from_file(str(path)) if path.is_file() else None
    except Exception:  # The library has no class of its own; whoever loads the folder says it.
        return None


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _back(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """A text through the tokenizer and back."""
    ids = _ids(tokenizer, text)
    back = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(back).strip()

"""The tokenizer of a folder that somebody brings, or what the folder lacks.

Of about half of the families (Llama, Mistral, Falcon, OLMo 2, ...) a folder without a tokenizer
ends in an error of `transformers` whose first line lists nothing, and a file of SentencePiece alone
in one that asks for `tiktoken`, which would not help.
"""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf.model_folders import ModelFolderError, require_model_folder
from rlhf.models import VOCABULARIES, read_tokenizer

SENTENCEPIECE = "*.model", "*.spm"


def read_own_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer.

    Raises:
        ModelFolderError: it is no model folder, or its tokenizer is missing or cannot be loaded.
    """
    require_model_folder(folder)
    try:
        return read_tokenizer(folder)
    except ModelFolderError as error:
        raise ModelFolderError(_lacking(folder) or str(error)) from error


def _lacking(folder: Path) -> str | None:
    """What to say where a file is missing; None where a tokenizer's file is there."""
    pieces = sorted(path.name for kind in SENTENCEPIECE for path in folder.glob(kind))
    if any((folder / name).is_file() for name in VOCABULARIES if name not in pieces):
        return None
    if pieces:
        return (
            f"{folder}: its tokenizer is {pieces[0]} alone, and there is no tokenizer.json; where "
            "the package sentencepiece is installed, AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder) writes one"
        )
    return (
        f"{folder}: holds no tokenizer (none of {', '.join(VOCABULARIES)}); save it beside the "
        "weights: tokenizer.save_pretrained"
    )

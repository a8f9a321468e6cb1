"""Whether prompts and pairs are short enough for each stage; if none is, the stage would end."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preferences.records import Preference, Prompt
from tasks.own_data.rows import MIN_EVALUATED
from tasks.params.loading import Params

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORTH_A_NOTE = 0.1
"""Share of pairs that are too long."""


def length_problems(
    params: Params, root: Path, prompts: Mapping[str, Sequence[Prompt]]
) -> Iterator[tuple[str, str]]:
    """Key and problem of every limit that leaves too few of the prompts of a split.

    Nothing where the tokenizer is not here yet: of the embedded model, or one on the hub.
    """
    if (tokenizer := _own_tokenizer(params, root)) is None:
        return
    from rlhf.chat import TokenizerError, encode_prompt  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    try:
        for section, splits, needed in (
            ("sample", ("train",), 1),
            ("ppo", ("train",), 1),
            ("evaluate", ("heldout", "test"), MIN_EVALUATED),
        ):
            most = getattr(params, section).max_prompt_tokens
            for split in splits:
                lengths = (len(encode_prompt(tokenizer, each)) for each in prompts[split])
                if found := _too_few(lengths, most, needed):
                    what = f"{most} tokens of {params.base.model}, but of the {split} prompts"
                    behind = "; raise it, or shorten prompts"
                    yield f"{section}.max_prompt_tokens", f"{what} {found}{behind}"
    except (TokenizerError, TemplateError):
        return  # Said by `base`, with the row.


def length_notes(
    params: Params, root: Path, pairs: Mapping[str, Sequence[Preference]]
) -> Iterator[str]:
    """Where reward training leaves out many of the pairs, by the key that names them.

    Nothing where no reward model is trained, or the tokenizer is not here yet.
    """
    if params.reward.model is not None or (tokenizer := _own_tokenizer(params, root)) is None:
        return
    from rlhf.chat import TokenizerError  # noqa: PLC0415
    from rlhf.scoring import Encoder  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    most = params.reward.max_tokens
    try:
        encoder = Encoder(tokenizer)
        for key, rows in pairs.items():
            lengths = [
                max(
                    len(encoder.encode(row.prompt, row.chosen, finished=row.chosen_finished)),
                    len(encoder.encode(row.prompt, row.rejected, finished=row.rejected_finished)),
                )
                for row in rows
            ]
            longer = sum(length > most for length in lengths)
            if longer > WORTH_A_NOTE * len(rows):
                found = f"{longer} of the {len(rows)} pairs looked at have a side of more than"
                limit = f"{most} tokens (reward.max_tokens) and are left out"
                yield f"{key}: {found} {limit}; the longest has {max(lengths)}"
    except (TokenizerError, TemplateError):
        return  # Said by `base`, with the row.


def _own_tokenizer(params: Params, root: Path) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of the base model as `base` sets it up; None where it is not here."""
    model = params.base.model
    if model is None or not (root / model).is_dir():
        return None
    # Importing transformers takes seconds; a model of one's own has been looked at by now.
    from rlhf.models import load_tokenizer  # noqa: PLC0415
    from rlhf.template_args import set_template_args  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    tokenizer = load_tokenizer(root / model)
    try:
        set_template_args(tokenizer, params.base.chat_template_args)
    except TemplateError:
        return None  # Said by `base`.
    return tokenizer


def _too_few(lengths: Iterator[int], most: int, needed: int) -> str | None:
    """How many are short enough, where too few are; those behind enough are not looked at."""
    short, longer = 0, []
    for length in lengths:
        if length > most:
            longer.append(length)
        elif (short := short + 1) == needed:
            return None
    if not longer:
        return None  # There are too few prompts of any length, which is another problem.
    found = f"only {short} has" if short else "none has"
    return f"{found} as few, expected {needed} or more (the next has {min(longer)})"

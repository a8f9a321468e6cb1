"""Whether any prompt is short enough for each stage that asks them; if not, the stage would end."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from preferences.records import Prompt
from tasks.own_data.rows import MIN_EVALUATED
from tasks.params.loading import Params


def length_problems(
    params: Params, root: Path, prompts: Mapping[str, Sequence[Prompt]]
) -> Iterator[tuple[str, str]]:
    """Key and problem of every limit that leaves too few of the prompts of a split.

    Nothing where the tokenizer is not here yet: of the embedded model, or one on the hub.
    """
    model = params.base.model
    if model is None or not (root / model).is_dir():
        return
    # Importing transformers takes seconds; a model of one's own has been looked at by now.
    from rlhf.chat import TokenizerError, encode_prompt  # noqa: PLC0415
    from rlhf.models import load_tokenizer  # noqa: PLC0415
    from rlhf.template_args import set_template_args  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    tokenizer = load_tokenizer(root / model)
    try:
        set_template_args(tokenizer, params.base.chat_template_args)
        for section, splits, needed in (
            ("sample", ("train",), 1),
            ("ppo", ("train",), 1),
            ("evaluate", ("heldout", "test"), MIN_EVALUATED),
        ):
            most = getattr(params, section).max_prompt_tokens
            for split in splits:
                lengths = (len(encode_prompt(tokenizer, each)) for each in prompts[split])
                if found := _too_few(lengths, most, needed):
                    what = f"{most} tokens of {model}, but of the {split} prompts {found}"
                    yield f"{section}.max_prompt_tokens", f"{what}; raise it, or shorten prompts"
    except (TokenizerError, TemplateError):
        return  # Said by `base`, with the row.


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

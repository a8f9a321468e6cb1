"""Whether reward models of others can write the prompts that they will score.

They read text by a tokenizer and a chat template of their own. Without a template they take no
messages, and a template may take no system's message, or no two turns of one side in a row.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preferences.records import Prompt
from tasks.own_data.hub_checks import Problem
from tasks.own_data.model_checks import scorers
from tasks.params.loading import Params

if TYPE_CHECKING:
    from rlhf.classifiers import TextEncoder

Roles = tuple[str, ...]
"""Who speaks in a prompt, turn by turn; nobody in a text. It decides whether a template fails."""


def roles_of(prompt: Prompt) -> Roles:
    """Who speaks in a prompt."""
    return () if isinstance(prompt, str) else tuple(turn["role"] for turn in prompt)


def turn_problems(
    params: Params, root: Path, turns: Mapping[str, Mapping[Roles, Prompt]]
) -> Iterator[Problem]:
    """Prompts that a scorer cannot write, by who speaks in them.

    `turns` has a prompt of each kind for each key of own rows. A reward model scores all but
    demonstrations; one that only judges sees responses to the prompts alone.
    """
    for key, folder in scorers(params, root).items():
        from rlhf.classifiers import load_text_encoder  # noqa: PLC0415 (seconds of imports)

        encoder = load_text_encoder(folder)
        seen = set(turns) - {"prepare.files.demonstrations"}
        if key == "label.reward_model":
            seen &= {"prepare.files.prompts"}
        for rows in sorted(seen):
            for roles, prompt in turns[rows].items():
                if problem := _problem(encoder, prompt):
                    who = f" with the roles {', '.join(roles)}" if roles else ""
                    yield key, f"{problem}: {rows} has prompts{who}"


def _problem(encoder: "TextEncoder", prompt: Prompt) -> str | None:
    """Why a scorer cannot write a prompt with its response, if it cannot."""
    from rlhf.chat import TokenizerError  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    try:
        for finished in (True, False):
            encoder.encode(prompt, "a", finished=finished)
    except (TokenizerError, TemplateError) as error:
        return str(error)
    return None

r"""Formats with one pair per row: our own, TRL's and Anthropic's HH.

- `preferences`: our own rows (`data/README.md`).
- `trl`: `prompt`, `chosen`, `rejected`, each a text or messages; without `prompt`, or if both sides
  are conversations that include it, the prompt is the common beginning of both sides.
- `hh`: `chosen` and `rejected` are transcripts with turns of `\n\nHuman:` and `\n\nAssistant:`; the
  prompt ends with the last `\n\nAssistant:` that both have in common.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from preferences.records import Preference, Prompt, Row, pair_id, prompt_text, text_hash
from preferences.row_values import RowError
from preferences.schemas import PREFERENCES, Field, Schema
from preferences.splitting import is_transcript, turns_of

TURN = "\n\nAssistant:"
_ROLES = {"Human": "user", "Assistant": "assistant"}

_EXTRA = (
    Field(name="chosen_finished", kind="truth", required=False, nullable=True),
    Field(name="rejected_finished", kind="truth", required=False, nullable=True),
    Field(name="prompt_id", filled=True, required=False, nullable=True),
    Field(name="margin", kind="number", required=False, nullable=True, low=0),
    Field(name="weight", kind="number", required=False, nullable=True, low=0),
    Field(name="source", required=False, nullable=True),
    Field(name="round", required=False, nullable=True),
    Field(name="split", required=False, nullable=True, choices=("train", "heldout")),
    Field(name="label", kind="number", required=False, nullable=True, low=0.5, high=1),
    Field(name="annotator_version", required=False, nullable=True),
)

_SAID = tuple(field.name for field in _EXTRA)

OWN = replace(
    PREFERENCES,
    fields=tuple(
        replace(field, nullable=not field.required or field.name == "margin")
        for field in PREFERENCES.fields
    ),
)
"""Our own schema, with null for missing values: tables have every column in every row."""

TRL = Schema(
    "TRL preferences",
    (
        Field(name="prompt", kind="prompt", required=False, filled=True),
        Field(name="chosen", kind="prompt"),
        Field(name="rejected", kind="prompt"),
        *_EXTRA,
    ),
    unknown="leave out",
)

HH = Schema(
    "HH transcripts",
    (Field(name="chosen"), Field(name="rejected"), *_EXTRA),
    unknown="leave out",
)


def own_from_row(row: Mapping[str, Any]) -> Preference:
    """A row in our own format.

    Raises:
        RowError: the pair id does not match the content.
    """
    given = {name: value for name, value in row.items() if value is not None}
    preference = Preference.from_row(given)
    expected = pair_id(preference.prompt, preference.chosen, preference.rejected)
    if preference.pair_id != expected:
        raise RowError(f'field "pair_id": expected {expected} for this content')
    return preference


def trl_from_row(row: Mapping[str, Any]) -> Preference:
    """A row in TRL's format, with or without `prompt`.

    Raises:
        RowError: texts and messages are mixed, a response is not a single assistant message, or
            both sides without `prompt` do not begin with the same words or messages.
    """
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowError('fields "chosen" and "rejected": one is text, the other messages')
    if "prompt" in row and not (_opens(chosen, row["prompt"]) and _opens(rejected, row["prompt"])):
        return preference_of(row, row["prompt"], _response(chosen), _response(rejected), _SAID)
    if isinstance(chosen, str):
        start = _common_words(chosen, rejected)
        if not start:
            raise RowError(
                'fields "chosen" and "rejected" begin with no word in common, which would be the '
                'prompt: expected a field "prompt"'
            )
        return preference_of(row, chosen[:start], chosen[start:], rejected[start:], _SAID)
    start = _common_messages(chosen, rejected)
    if not start:
        raise RowError(
            'fields "chosen" and "rejected" begin with no message in common, which would be the '
            'prompt: expected a field "prompt"'
        )
    responses = _response(chosen[start:]), _response(rejected[start:])
    return preference_of(row, chosen[:start], *responses, _SAID)


def has_transcripts(row: Mapping[str, Any]) -> bool:
    """Whether both sides are transcripts of HH, also where white space at the ends was stripped."""
    sides = (row["chosen"], row["rejected"])
    return "prompt" not in row and all(
        isinstance(side, str)
        and side.lstrip().startswith("Human:")
        and (side.startswith("\n\n") or TURN in side)
        for side in sides
    )


def hh_from_row(row: Mapping[str, Any]) -> Preference:
    """A row in HH's format.

    Raises:
        RowError: the transcripts have no assistant turn in common.
    """
    chosen, rejected = row["chosen"], row["rejected"]
    common = _common(chosen, rejected)
    start = common.rfind(TURN)
    if start < 0:
        raise RowError('fields "chosen" and "rejected": no "\\n\\nAssistant:" in common')
    start += len(TURN)
    return preference_of(row, chosen[:start], chosen[start:], rejected[start:], _SAID)


def preference_of(
    row: Mapping[str, Any],
    prompt: Prompt,
    chosen: str,
    rejected: str,
    said: Sequence[str] = ("prompt_id",),
) -> Preference:
    """A preference with its ids and the columns `said` of `row`."""
    extra = {name: row[name] for name in said if row.get(name) is not None}
    return Preference(
        **{"prompt_id": text_hash(prompt_text(prompt)), **extra},
        pair_id=pair_id(prompt, chosen, rejected),
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
    )


def trl_to_row(preference: Preference) -> Row:
    """TRL's explicit form plus our columns; messages if the prompt is messages."""
    row = preference.to_row()
    del row["pair_id"]
    if not isinstance(preference.prompt, str):
        row |= {side: [assistant(row[side])] for side in ("chosen", "rejected")}
    return row


def trl_messages_to_row(preference: Preference) -> Row:
    """TRL's explicit form, always messages: a transcript's turns, or a text as a user message."""
    turns = _turns(preference.prompt)
    # The blank after the transcript's last "Assistant:" belongs to neither response.
    both = preference.chosen.startswith(" ") and preference.rejected.startswith(" ")
    blank = " " if turns and both else ""
    prompt = turns or messages(preference.prompt)
    # An id that is the hash of the content stays so: a file of these prompts has no other.
    given, content = preference.prompt_id, text_hash(prompt_text(preference.prompt))
    return trl_to_row(preference) | {
        "prompt_id": text_hash(prompt_text(prompt)) if given == content else given,
        "prompt": prompt,
        "chosen": [assistant(preference.chosen.removeprefix(blank))],
        "rejected": [assistant(preference.rejected.removeprefix(blank))],
    }


def trl_implicit_to_row(preference: Preference) -> Row:
    """TRL's implicit form: without a prompt, both sides are whole conversations."""
    row = trl_messages_to_row(preference)
    prompt = row.pop("prompt")
    return row | {side: prompt + row[side] for side in ("chosen", "rejected")}


def hh_to_row(preference: Preference) -> Row:
    """HH's transcripts; a prompt that is not a transcript becomes the human's turn.

    Raises:
        RowError: the prompt has messages of other roles than user and assistant, or both responses
            begin with a turn that would be read as part of the prompt.
    """
    prompt = transcript(preference.prompt)
    chosen, rejected = prompt + preference.chosen, prompt + preference.rejected
    if _common(chosen, rejected).rfind(TURN) > prompt.rfind(TURN):
        raise RowError(
            'HH would read the "\\n\\nAssistant:" turn that both responses start with as prompt'
        )
    return {"chosen": chosen, "rejected": rejected}


def transcript(prompt: Prompt) -> str:
    """The prompt as a transcript that ends with the start of an assistant turn.

    Raises:
        RowError: it has messages of other roles than user and assistant.
    """
    if isinstance(prompt, str):
        return prompt if prompt.rstrip().endswith(TURN) else f"\n\nHuman: {prompt}{TURN} "
    names = {"user": "Human", "assistant": "Assistant"}
    others = [turn["role"] for turn in prompt if turn["role"] not in names]
    if others:
        raise RowError(f'field "prompt": HH has no turns of role {others[0]}')
    turns = (f"\n\n{names[turn['role']]}: {turn['content']}" for turn in prompt)
    return "".join(turns) + TURN + " "


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """The prompt as messages."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def assistant(content: str) -> dict[str, str]:
    """An assistant message."""
    return {"role": "assistant", "content": content}


def _turns(prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a transcript whose sides take turns, the human's last; none of any other."""
    if not isinstance(prompt, str) or not is_transcript(prompt):
        return []
    turns = turns_of(prompt)
    if turns[-1] == ("Assistant", ""):
        turns.pop()
    roles, texts = zip(*turns, strict=True)
    in_turn = list(roles) == (["Human", "Assistant"] * len(turns))[: len(turns)]
    if roles[-1] != "Human" or not in_turn or not all(texts):
        return []
    return [{"role": _ROLES[role], "content": said} for role, said in turns]


def _response(value: str | list[dict[str, str]]) -> str:
    if isinstance(value, str):
        return value
    if [turn["role"] for turn in value] != ["assistant"]:
        roles = ", ".join(turn["role"] for turn in value) or "none"
        raise RowError(f"expected a single assistant message as response, got {roles}")
    return value[0]["content"]


def _opens(conversation: str | list[dict[str, str]], prompt: Prompt) -> bool:
    """Whether a conversation begins with its prompt; of a text, after a message of the system."""
    turns = [] if isinstance(conversation, str) else conversation
    if not isinstance(prompt, str):
        return turns[: len(prompt)] == prompt
    first = next((turn for turn in turns if turn["role"] != "system"), None)
    return first == {"role": "user", "content": prompt}


def _common_messages(chosen: list[dict[str, str]], rejected: list[dict[str, str]]) -> int:
    """Number of messages that both begin with, leaving at least one to each."""
    most = min(len(chosen), len(rejected)) - 1
    return next((n for n in range(most) if chosen[n] != rejected[n]), most)


def _common(one: str, other: str) -> str:
    """The common beginning of both texts."""
    differ = bisect_left(range(1, len(one) + 1), True, key=lambda n: one[:n] != other[:n])
    return one[:differ]


def _common_words(chosen: str, rejected: str) -> int:
    """Length of the common beginning, cut back to the white space before the first difference."""
    common = _common(chosen, rejected)
    words = common.split()
    inside = words and not common[-1].isspace()
    # White space stays with the responses, so that prompt and response join to the original.
    return len((common[: -len(words[-1])] if inside else common).rstrip())

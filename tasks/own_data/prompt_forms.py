"""Whether prompts came in another form than was meant: conversations that are one text.

Tables lose the form of messages: pandas writes a list into a CSV cell as Python shows it, with
single quotes, and some data sets hold JSON in a text. Such a text is a prompt like others, and the
policy would be asked `[{'role': 'user', 'content': ...`.
"""

import re
from collections.abc import Iterator, Sequence

from preferences.records import Prompt
from preferences.splitting import is_transcript

_OPENS = re.compile(r"\s*\[\s*\{\s*(['\"])(?:role|content|from|value)\1\s*:")
_SPEAKER = re.compile(r"(['\"])(?:role|from)\1\s*:")
_WORDS = re.compile(r"(['\"])(?:content|value)\1\s*:")
_WRITTEN = (
    "prompts are messages written into a text ([{'role': ...), which a model would read as it "
    "stands; give lists in JSON Lines or Parquet, and in a table JSON (json.dumps)"
)


def form_notes(key: str, prompts: Sequence[Prompt]) -> Iterator[str]:
    """What the user should know of the prompts that a key names, a sentence each."""
    if count := sum(map(is_transcript, prompts)):
        yield (
            f"{key}: {count} of {len(prompts)} prompts are conversations in one text "
            '("Human: ... Assistant:"); a model with a chat template sees each as one message of a '
            "user. `python -m preferences convert` makes messages of pairs "
            "(docs/how-to/offline-preferences.md)"
        )
    if 0 < (count := sum(map(_is_written_list, prompts))) < len(prompts):
        yield f"{key}: {count} of {len(prompts)} {_WRITTEN}"
    if count := sum(map(_ends_with_assistant, prompts)):
        yield (
            f"{key}: {count} of {len(prompts)} prompts end with a turn of the assistant, so the "
            "response is a second one; a prompt ends before the response"
        )


def form_problems(prompts: Sequence[Prompt]) -> Iterator[str]:
    """What keeps prompts from being what was meant, where all of them are so."""
    if prompts and all(map(_is_written_list, prompts)):
        yield f"all {len(prompts)} {_WRITTEN}"


def _is_written_list(prompt: Prompt) -> bool:
    """Whether a text looks like a list of turns, as Python or JSON writes it."""
    return (
        isinstance(prompt, str)
        and _OPENS.match(prompt) is not None
        and _SPEAKER.search(prompt) is not None
        and _WORDS.search(prompt) is not None
    )


def _ends_with_assistant(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"

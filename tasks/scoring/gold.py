"""The gold score of answers: known for the embedded prompts, None for all others."""

from collections.abc import Sequence

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response


def gold_scores(
    prompts: Sequence[object], answers: Sequence[str], finished: Sequence[bool]
) -> list[float] | None:
    """The rubric's score of each answer, 10 for an ideal one; None if any prompt is not its own."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str) and parse_request(prompt)]
    if len(texts) < len(prompts):
        return None
    rows = zip(texts, answers, finished, strict=True)
    return [score_response(prompt, answer, finished=end) for prompt, answer, end in rows]

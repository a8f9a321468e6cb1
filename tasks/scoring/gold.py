"""The gold score of responses: defined for the embedded prompts, None for all others."""

from collections.abc import Sequence

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response


def gold_scores(
    prompts: Sequence[object], responses: Sequence[str], finished: Sequence[bool]
) -> list[float] | None:
    """The rubric's score of each response, 10 being ideal; None if any prompt is not embedded."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str) and parse_request(prompt)]
    if len(texts) < len(prompts):
        return None
    rows = zip(texts, responses, finished, strict=True)
    return [score_response(prompt, response, finished=end) for prompt, response, end in rows]

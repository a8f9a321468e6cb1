"""Win rates by a judge, where there is no gold score to compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from feedback.annotators import LabelParams
from feedback.judges import ORDERS_DIFFER
from feedback.judgments import Pair
from preferences.records import Judgment, Prompt, pair_id
from rlhf.intervals import hits_interval
from tasks.params.loading import RunParams
from tasks.running.outcome import StageEnd
from tasks.scoring.language_annotator import ask_language_model
from tasks.scoring.reward_annotator import ask_reward_model

POINTS = {"a": 1.0, "tie": 0.5, "both_bad": 0.5, "b": 0.0}
"""What a judgment gives the first response; a skip gives nothing and does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """A policy's responses as a judge sees them."""

    texts: Sequence[str]
    finished: Sequence[bool]


def judged_win_rate(
    judge: Literal["language_model", "reward_model"],
    params: LabelParams,
    run: RunParams,
    *,
    prompts: Sequence[Prompt],
    ours: Answers,
    theirs: Answers,
) -> dict[str, Any]:
    """How often the judge of section `label` prefers our response to theirs, with its interval.

    Ties count half, equal texts among them, about which nobody is asked, and those of a language
    model whose verdict changed with their order: `orders_differ` says how many. What the judge
    skipped does not count; `skipped` says how many.

    Raises:
        StageEnd: the judge cannot be asked, or said nothing.
    """
    pairs, equal = [], 0
    for number, prompt in enumerate(prompts):
        a, b = ours.texts[number], theirs.texts[number]
        if a == b:
            equal += 1
            continue
        pairs.append(
            Pair(
                pair_id=pair_id(prompt, a, b),
                round="evaluate",
                prompt=prompt,
                response_a=a,
                response_b=b,
                finished_a=ours.finished[number],
                finished_b=theirs.finished[number],
            )
        )
    judgments = _ask(judge, params, pairs, run) if pairs else []
    points = [POINTS[each.choice] for each in judgments if each.choice in POINTS]
    points += [POINTS["tie"]] * equal
    if not points:
        raise StageEnd("failed", f"evaluate.judge: {judge} gave no verdict on any prompt")
    share = hits_interval(points)
    differ = sum(each.reason == ORDERS_DIFFER for each in judgments)
    return {
        **share.as_dict(),
        "skipped": len(prompts) - len(points),
        **({"orders_differ": differ} if judge == "language_model" else {}),
    }


def _ask(judge: str, params: LabelParams, pairs: Sequence[Pair], run: RunParams) -> list[Judgment]:
    if judge == "reward_model":
        assert params.reward_model is not None
        return ask_reward_model(Path(params.reward_model), pairs, run)
    assert params.language_model is not None
    return ask_language_model(params.language_model, pairs)

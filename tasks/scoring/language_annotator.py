"""A language model behind an endpoint as the annotator of pairs."""

import logging
from collections.abc import Sequence
from pathlib import Path

from feedback.endpoint import UnansweredError
from feedback.judges import LanguageModelAnnotator, LanguageModelParams
from feedback.judgments import Pair
from preferences.records import Judgment
from tasks.running.outcome import StageEnd

VERDICTS = Path(".work") / "feedback" / "verdicts"
"""Cached verdicts of language models, by version of the annotator: no query is made twice."""

log = logging.getLogger(__name__)


def ask_language_model(params: LanguageModelParams, pairs: Sequence[Pair]) -> list[Judgment]:
    """One judgment of each pair; a refusal or an invalid verdict becomes a skip with its reason.

    Raises:
        StageEnd: the endpoint does not answer, or the model gives no verdict on any pair.
    """
    annotator = LanguageModelAnnotator(params, cache=VERDICTS)
    try:
        judgments = annotator.judge(pairs)
    except UnansweredError as error:
        raise StageEnd(
            "failed",
            f"{params.model} at {params.endpoint}: {error}; "
            "the verdicts so far are kept, run the stage again for the others",
        ) from error
    words = f" ({annotator.refusal})" if annotator.refusal else ""
    if judgments and all(judgment.choice == "skip" for judgment in judgments):
        raise StageEnd(
            "failed",
            f"{params.model} at {params.endpoint} gave no verdict "
            f"on any of {len(judgments)} pairs; the first: {judgments[0].reason}{words}",
        )
    if words:
        log.warning("%s at %s refused to judge a pair%s", params.model, params.endpoint, words)
    return judgments

"""Stage `label`: the annotators judge the round's pairs."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response
from feedback.annotators import (
    FileAnnotator,
    LabelParams,
    MissingJudgmentsError,
    RubricAnnotator,
)
from feedback.judges import LanguageModelAnnotator
from feedback.judgments import Pair, read_pairs, to_lines
from preferences.records import Judgment, JudgmentError
from tasks.running.metrics_file import write_metrics
from tasks.running.outcome import StageEnd
from tasks.running.runner import run_stage
from tasks.running.stage import Stage

INPUTS = ("data/rounds/{key}/comparisons.jsonl",)
VERDICTS = Path(".work") / "feedback" / "verdicts"
"""Cached verdicts of language models, by version of the annotator: no query is made twice."""


def run(stage: Stage) -> None:
    """Ask the configured annotators for judgments of exactly these pairs; `none` gives none."""
    key = stage.round_key
    pairs = read_pairs(Path(f"data/rounds/{key}/comparisons.jsonl"))
    try:
        judgments = _judge(stage, pairs)
    except MissingJudgmentsError as missing:
        raise StageEnd("waiting", str(missing)) from None
    target = stage.staging.file(f"data/rounds/{key}/judgments.jsonl")
    target.write_text(to_lines([j.to_row() for j in judgments]), encoding="utf-8")
    counts = Counter(judgment.choice for judgment in judgments)
    metrics = {"judgments": len(judgments), **{f"chose_{c}": n for c, n in sorted(counts.items())}}
    write_metrics(stage.staging.directory(f"results/label/{key}"), metrics)
    stage.final(metrics)


def _judge(stage: Stage, pairs: list[Pair]) -> list[Judgment]:
    params = stage.params.label
    if params.annotators == "none":
        return []
    if params.annotators == "rubric":
        return RubricAnnotator(
            _support_desk_score(pairs), params, seed=stage.params.run.seed, rubric="support-desk"
        ).judge(pairs)
    if params.annotators == "file":
        assert params.file is not None
        return FileAnnotator(Path(params.file), params).judge(pairs)
    if params.annotators == "language_model":
        return ask_language_model(params, pairs)
    # Imported here: the others need neither the labelling store nor torch.
    if params.annotators == "people":
        from feedback.people import PeopleAnnotator  # noqa: PLC0415

        return PeopleAnnotator(params).judge(pairs)
    from tasks.scoring.reward_annotator import ask_reward_model  # noqa: PLC0415

    return ask_reward_model(params, pairs, stage.params.run)


def ask_language_model(params: LabelParams, pairs: Sequence[Pair]) -> list[Judgment]:
    """One judgment of each pair; a failed query becomes a skip with its reason.

    Raises:
        StageEnd: every pair failed: the endpoint is unreachable, or the model gives no verdicts.
    """
    assert params.language_model is not None
    judgments = LanguageModelAnnotator(params.language_model, cache=VERDICTS).judge(pairs)
    if judgments and all(judgment.choice == "skip" for judgment in judgments):
        raise StageEnd(
            "failed",
            f"{params.language_model.model} at {params.language_model.endpoint} gave no verdict "
            f"on any of {len(judgments)} pairs; the first: {judgments[0].reason}",
        )
    return judgments


def _support_desk_score(pairs: list[Pair]) -> Callable[[str, str, bool], float]:
    """The rubric's score function; the rubric covers the embedded prompts only."""
    for pair in pairs:
        if not isinstance(pair.prompt, str) or parse_request(pair.prompt) is None:
            raise StageEnd(
                "bad_input",
                f"label.annotators is rubric, which covers the support desk only, but "
                f"pair {pair.pair_id} asks {str(pair.prompt)[:80]!r}; use people, file or a model",
            )
    return lambda prompt, response, finished: score_response(prompt, response, finished=finished)


if __name__ == "__main__":
    sys.exit(
        run_stage("label", run, inputs=INPUTS, per_round=True, errors={JudgmentError: "bad_input"})
    )

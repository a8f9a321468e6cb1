"""Stage `label`: the annotators judge the round's pairs."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response
from feedback.annotators import FileAnnotator, MissingJudgmentsError, RubricAnnotator
from feedback.judgments import Judgment, JudgmentError, Pair, read_pairs, to_lines
from tasks.metrics_file import write_metrics
from tasks.outcome import StageEnd
from tasks.stage import Stage, run_stage

INPUTS = ("data/rounds/{key}/comparisons.jsonl",)


def run(stage: Stage) -> None:
    """Ask the configured annotators for judgments of exactly these pairs."""
    key = stage.round_key
    pairs = read_pairs(Path(f"data/rounds/{key}/comparisons.jsonl"))
    try:
        judgments = _judge(stage, pairs)
    except MissingJudgmentsError as missing:
        raise StageEnd("waiting", str(missing)) from None
    target = stage.staging.file(f"data/rounds/{key}/judgments.jsonl")
    target.write_text(to_lines([j.to_json() for j in judgments]), encoding="utf-8")
    counts = Counter(judgment.choice for judgment in judgments)
    metrics = {"judgments": len(judgments), **{f"chose_{c}": n for c, n in sorted(counts.items())}}
    write_metrics(stage.staging.directory(f"results/label/{key}"), metrics)
    stage.final(metrics)


def _judge(stage: Stage, pairs: list[Pair]) -> list[Judgment]:
    params = stage.params.label
    if params.annotators == "rubric":
        return RubricAnnotator(
            _support_desk_score(pairs), params, seed=stage.params.run.seed, rubric="support-desk"
        ).judge(pairs)
    if params.annotators == "file":
        assert params.file is not None
        return FileAnnotator(Path(params.file), params).judge(pairs)
    from feedback.people import PeopleAnnotator  # noqa: PLC0415 (needs the labelling store)

    return PeopleAnnotator(params).judge(pairs)


def _support_desk_score(pairs: list[Pair]) -> Callable[[str, str], float]:
    """The rubric, which knows the embedded prompts only."""
    for pair in pairs:
        if not isinstance(pair.prompt, str) or parse_request(pair.prompt) is None:
            raise StageEnd(
                "bad_input",
                f"label.annotators is rubric, which knows the support desk only; "
                f"pair {pair.pair_id} asks {str(pair.prompt)[:80]!r}; use file or people",
            )
    return score_response


if __name__ == "__main__":
    sys.exit(
        run_stage("label", run, inputs=INPUTS, per_round=True, errors={JudgmentError: "bad_input"})
    )

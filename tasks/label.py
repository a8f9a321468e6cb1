"""Stage `label`: the annotators judge the round's pairs."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response
from feedback.annotators import (
    FileAnnotator,
    MissingJudgmentsError,
    RubricAnnotator,
)
from feedback.judges import ORDERS_DIFFER
from feedback.judgments import Pair, read_pairs, to_lines
from preferences.records import Judgment, JudgmentError
from preferences.withdrawals import WithdrawalsError, load_withdrawals
from tasks.running.metrics_file import write_metrics
from tasks.running.outcome import StageEnd
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.scoring.language_annotator import ask_language_model

INPUTS = ("data/rounds/{key}/comparisons.jsonl", "data/withdrawn/judgments.jsonl")


def run(stage: Stage) -> None:
    """Ask the configured annotators for judgments of exactly these pairs; `none` gives none.

    Those that were withdrawn are left out, whoever gives them again.
    """
    key = stage.round_key
    pairs = read_pairs(Path(f"data/rounds/{key}/comparisons.jsonl"))
    try:
        withdrawn = load_withdrawals(Path("data/withdrawn/judgments.jsonl"))
        judgments = withdrawn.kept_judgments(_judge(stage, pairs))
    except MissingJudgmentsError as missing:
        raise StageEnd("waiting", str(missing)) from None
    target = stage.staging.file(f"data/rounds/{key}/judgments.jsonl")
    # A blank line holds no judgment, and DVC warns of a file of 0 bytes.
    target.write_text(to_lines([j.to_row() for j in judgments]) or "\n", encoding="utf-8")
    counts = Counter(judgment.choice for judgment in judgments)
    metrics: dict[str, float] = {"judgments": len(judgments)}
    metrics |= {f"chose_{c}": n for c, n in sorted(counts.items())}
    # A language model is asked in both orders; it may have been withdrawn since.
    verdicts = [judgment for judgment in judgments if judgment.choice != "skip"]
    if stage.params.label.annotators == "language_model" and verdicts:
        same = sum(judgment.reason != ORDERS_DIFFER for judgment in verdicts)
        metrics["position_consistency"] = same / len(verdicts)
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
        assert params.language_model is not None
        return ask_language_model(params.language_model, pairs)
    # Imported here: the others need neither the labelling store nor torch.
    if params.annotators == "people":
        from feedback.people import PeopleAnnotator  # noqa: PLC0415

        return PeopleAnnotator(params).judge(pairs)
    from tasks.scoring.reward_annotator import ask_reward_model  # noqa: PLC0415

    assert params.reward_model is not None
    return ask_reward_model(Path(params.reward_model), pairs, stage.params.run)


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
        run_stage(
            "label",
            run,
            inputs=INPUTS,
            per_round=True,
            errors={JudgmentError: "bad_input", WithdrawalsError: "bad_input"},
        )
    )

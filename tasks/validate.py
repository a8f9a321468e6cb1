"""Stage `validate`: only preferences that pass the gate may train a reward model."""

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from preferences.allowing import load_allowed
from preferences.baselines import bag_of_words
from preferences.gate import GateResult, Round, run_gate
from preferences.grouped_shares import longer_wins
from preferences.judging import judge
from preferences.loading import load_comparisons, load_judgments, load_preferences, load_prompts
from preferences.records import Judgment, JudgmentMismatchError
from preferences.statistics import votes_of
from preferences.tokens import TokenLimit
from tasks.running.metrics_file import write_metrics
from tasks.running.outcome import StageEnd
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import write_json_lines
from tasks.tracking.spool import Output
from tasks.workspace.work_folder import BLOCKED

_log = logging.getLogger(__name__)

INPUTS = (
    "data/allowed.jsonl",
    "data/prepared",
    "models/sft",
    "data/rounds/{key}/comparisons.jsonl",
    "data/rounds/{key}/judgments.jsonl",
    "{preferences}",
)


def run(stage: Stage) -> None:
    """Turn judgments into preferences and validate them together with all earlier ones."""
    key, params = stage.round_key, stage.params.validate
    rounds, prompts = Path(f"data/rounds/{key}"), Path("data/prepared/prompts")
    comparisons = load_comparisons(rounds / "comparisons.jsonl")
    judgments = load_judgments(rounds / "judgments.jsonl")
    judged = judge(comparisons, judgments, weights=params.weights, keep_ties=params.ties == "half")
    earlier = [
        row
        for split in ("train", "heldout")
        for row in load_preferences(Path(stage.round.preferences) / f"{split}.jsonl")
    ]
    evaluation = [
        prompt
        for split in ("heldout", "test")
        for prompt in load_prompts(prompts / f"{split}.jsonl")
    ]
    context = Round(
        votes=votes_of(comparisons, judgments),
        tokens=TokenLimit(Path("models/sft"), stage.params.reward.max_tokens),
        allowed=load_allowed(Path("data/allowed.jsonl")),
        human_labels=params.human_labels.get(str(key), 0),
        unlabelled=stage.params.label.annotators == "none",
    )
    results = stage.staging.directory(f"results/validate/{key}")
    result = run_gate(
        judged,
        earlier,
        evaluation,
        params,
        report_dir=results,
        docs_dir=stage.root / ".work" / stage.name / "data_docs",
        context=context,
    )
    metrics = result.verdict.metrics() | _baselines(result, results / "report.md")
    metrics |= _kinds(judgments, params.weights, results / "report.md")
    write_metrics(results, metrics)
    stage.final(metrics)
    if not result.passed:
        blocked = Path(".work") / stage.name / BLOCKED
        blocked.mkdir(parents=True, exist_ok=True)
        for file in results.iterdir():
            file.replace(blocked / file.name)
        stage.keep(Output("artifact", blocked))
        reasons = "; ".join(result.reasons)
        if "identical_tokens" in reasons:
            most = stage.params.reward.max_tokens
            seen = f"compares the first {most} tokens of a pair (reward.max_tokens)"
            reasons = f"{reasons}; identical_tokens {seen}"
        raise StageEnd("blocked", f"{reasons}. Report: {blocked}/report.md")
    folder = stage.staging.directory(f"data/rounds/{key}/preferences")
    for split, rows in (("train", result.train), ("heldout", result.heldout)):
        write_json_lines(folder / f"{split}.jsonl", [row.to_row() for row in rows])
    stage.keep(Output("artifact", Path(f"results/validate/{key}")))


def _kinds(
    judgments: Sequence[Judgment], weights: Mapping[str, float], report: Path
) -> dict[str, int]:
    """Votes by kind of annotator where there is more than one kind, also added to the report.

    That people and machines count alike is to be somebody's choice: without one, a warning.
    """
    votes = Counter(judgment.kind for judgment in judgments if judgment.choice != "skip")
    if len(votes) < 2:
        return {}
    listed = ", ".join(f"{kind} {number:,}" for kind, number in votes.most_common())
    words = f"Votes by kind of annotator: {listed}."
    if not votes.keys() & weights.keys():
        words += " They count alike; `validate.weights` gives a kind another weight."
        _log.warning("%s", words)
    with report.open("a", encoding="utf-8") as stream:
        stream.write(f"\n{words}\n")
    return {f"votes/{kind}": number for kind, number in sorted(votes.items())}


def _baselines(result: GateResult, report: Path) -> dict[str, float]:
    """Baselines for the round's reward model on the held-out rows, also added to the report."""
    train, heldout = (
        [row for row in side if not row.is_tie] for side in (result.train, result.heldout)
    )
    numbers = {
        "longer_wins": longer_wins(heldout),
        "bag_of_words": bag_of_words(train, heldout) if result.passed else None,
    }
    with report.open("a", encoding="utf-8") as stream:
        stream.write("\nOn the held-out rows a reward model has to beat:\n\n")
        stream.writelines(
            f"- {name}: {found.mean:.3f} "
            f"(95 % {found.low:.3f} to {found.high:.3f}, n {found.n:,})\n"
            for name, found in numbers.items()
            if found
        )
    return {f"baselines/{name}": found.mean for name, found in numbers.items() if found}


if __name__ == "__main__":
    sys.exit(
        run_stage(
            "validate",
            run,
            inputs=INPUTS,
            per_round=True,
            errors={JudgmentMismatchError: "bad_input"},
        )
    )

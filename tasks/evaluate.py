"""Stages `baseline`, `evaluate@K` and `test`: a policy on prompts it was not trained on."""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.evaluation import distinct_ngrams
from rlhf.intervals import TooFewValuesError, mean_interval, win_rate
from rlhf.reward_functions import RewardFunctionError
from rlhf.rule_rewards import WordListError
from tasks.evaluating.bench import SFT, Bench, Responses
from tasks.running.metrics_file import write_metrics
from tasks.running.models import ERRORS
from tasks.running.outcome import Status
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import write_json_lines
from tasks.scoring.learned import rewarded_by
from tasks.scoring.win_rates import Answers, judged_win_rate
from tasks.tracking.spool import Output

BASELINE_INPUTS = ("data/prepared", "models/sft")
ROUND_INPUTS = ("data/prepared", "models/sft", "{policy}", "models/rounds/{key}/policy",
                "models/rounds/{key}/reward")  # fmt: skip
TEST_INPUTS = ("data/prepared", "models/sft", "models/rounds/{final}/policy",
               "models/rounds/{final}/reward")  # fmt: skip

OUR_ERRORS: Mapping[type[Exception], Status] = {
    **ERRORS,
    RewardFunctionError: "bad_input",
    TooFewValuesError: "bad_input",
    WordListError: "bad_input",
}


def run_baseline(stage: Stage) -> None:
    """Measure SFT on the held-out prompts."""
    with Bench(stage, "heldout", passes=1) as bench:
        sft = bench.responses(SFT)
    _publish(stage, "results/baseline", _metrics("sft", bench, sft, sft, None, None), [])


def run_round(stage: Stage) -> None:
    """Measure the round's policy on the held-out prompts, against SFT and the round before."""
    key = str(stage.round_key)
    with Bench(stage, "heldout", passes=4) as bench:
        before = Path(stage.round.policy)
        _measure(stage, bench, key, f"results/evaluate/{key}", name=key, before=before)


def run_test(stage: Stage) -> None:
    """Measure the final policy on the test prompts, once."""
    final = stage.params.final
    with Bench(stage, "test", passes=4) as bench:
        _measure(stage, bench, final, "results/test", name=final, before=None)


def _measure(
    stage: Stage, bench: Bench, key: str, out: str, *, name: str, before: Path | None
) -> None:
    folder, reward = Path(f"models/rounds/{key}/policy"), Path(f"models/rounds/{key}/reward")
    sft, ours = bench.responses(SFT), bench.responses(folder)
    previous = sft if before == SFT else None  # Equal policies give equal responses.
    if before not in (None, SFT):
        bench.expect()
        previous = bench.responses(before)
    scores = bench.scores(ours, reward)
    metrics = _metrics(name, bench, ours, sft, previous, bench.kl(ours, folder))
    metrics["proxy"] = {"mean": statistics.fmean(scores)}
    if ours.gold is None:
        bench.expect()
        sft_scores = bench.scores(sft, reward)
        metrics["proxy"] = mean_interval(scores).as_dict()
        metrics["proxy_sft"] = mean_interval(sft_scores).as_dict()
        if stage.params.evaluate.judge == "reward":
            metrics |= _rewarded(stage, bench, reward, scores, sft_scores, sft, previous)
        else:
            metrics |= _judged(stage, bench, ours, sft, previous)
    samples = [
        {
            "prompt_id": row["prompt_id"],
            "prompt": row["prompt"],
            "sft": sft.texts[i],
            "sft_finished": sft.finished[i],
            "response": ours.texts[i],
            "finished": ours.finished[i],
            "gold_sft": None if sft.gold is None else round(sft.gold[i], 4),
            "gold": None if ours.gold is None else round(ours.gold[i], 4),
            "score": round(scores[i], 4),
        }
        for i, row in enumerate(bench.rows)
    ]
    _publish(stage, out, metrics, samples)


def _rewarded(
    stage: Stage,
    bench: Bench,
    reward: Path,
    scores: Sequence[float],
    sft_scores: Sequence[float],
    sft: Responses,
    previous: Responses | None,
) -> dict[str, Any]:
    """Win rates by what rewarded the round."""
    found: dict[str, Any] = {
        "win_rate_judge": rewarded_by(reward, stage.params.ppo.rewards),
        "win_rate_vs_sft": win_rate(scores, sft_scores).as_dict(),
    }
    if previous is sft:
        found["win_rate_vs_previous"] = found["win_rate_vs_sft"]
    elif previous is not None:
        bench.expect()
        before = bench.scores(previous, reward)
        found["win_rate_vs_previous"] = win_rate(scores, before).as_dict()
    return found


def _judged(
    stage: Stage, bench: Bench, ours: Responses, sft: Responses, previous: Responses | None
) -> dict[str, Any]:
    """Win rates by the judge of `evaluate.judge`, which is asked once about each pair."""
    judge = stage.params.evaluate.judge
    assert judge != "reward"
    stage.go_on_alone()

    def wins(theirs: Responses) -> dict[str, Any]:
        return judged_win_rate(
            judge,
            stage.params.label,
            stage.params.run,
            prompts=[row["prompt"] for row in bench.rows],
            ours=Answers(texts=ours.texts, finished=ours.finished),
            theirs=Answers(texts=theirs.texts, finished=theirs.finished),
        )

    found = {"win_rate_judge": f"label.{judge}", "win_rate_vs_sft": wins(sft)}
    if previous is not None:
        over_sft = found["win_rate_vs_sft"]
        found["win_rate_vs_previous"] = over_sft if previous is sft else wins(previous)
    return found


def _metrics(
    name: str,
    bench: Bench,
    ours: Responses,
    sft: Responses,
    previous: Responses | None,
    kl: list[float] | None,
) -> dict[str, Any]:
    lengths = [float(len(ids)) for ids in ours.ids]
    gold = ours.gold
    return {
        "policy": name,
        "gold": None if gold is None else mean_interval(gold).as_dict(),
        "win_rate_vs_sft": _wins(ours, sft),
        "win_rate_vs_previous": None if previous is None else _wins(ours, previous),
        "win_rate_judge": None if gold is None else "gold",
        "kl": mean_interval([0.0] * len(lengths) if kl is None else kl).as_dict(),
        "proxy": {"mean": None},
        "length": {"mean": statistics.fmean(lengths)},
        "finished": statistics.fmean(float(end) for end in ours.finished),
        "distinct_2": distinct_ngrams(ours.texts, 2),
        "too_long": bench.too_long,
        **bench.served,
    }


def _wins(ours: Responses, theirs: Responses) -> dict[str, float] | None:
    if ours.gold is None or theirs.gold is None:
        return None
    return win_rate(ours.gold, theirs.gold).as_dict()


def _publish(
    stage: Stage, path: str, metrics: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> None:
    folder = stage.staging.directory(path)
    write_metrics(folder, metrics)
    write_json_lines(folder / "samples.jsonl", samples)
    stage.final(metrics)
    stage.keep(Output("artifact", Path(path)))


def main(arguments: Sequence[str]) -> int:
    """`--policy sft` is the stage `baseline`, `--policy final` is `test`, else `--round KEY`."""
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluate", description=main.__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--policy", choices=["sft", "final"])
    which.add_argument("--round", help="key of the round in params.yaml")
    options = parser.parse_args(arguments)
    if options.round is not None:
        return run_stage(
            "evaluate",
            run_round,
            inputs=ROUND_INPUTS,
            arguments=arguments,
            per_round=True,
            errors=OUR_ERRORS,
        )
    body, name, inputs = (
        (run_baseline, "baseline", BASELINE_INPUTS)
        if options.policy == "sft"
        else (run_test, "test", TEST_INPUTS)
    )
    return run_stage("evaluate", body, name=name, inputs=inputs, arguments=[], errors=OUR_ERRORS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

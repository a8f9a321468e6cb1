"""Stages `baseline`, `evaluate@K` and `test`: a policy on prompts it was not trained on.

Every policy draws with the same numbers, whatever the round: responses are paired by prompt, and
equal policies give equal responses.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.chat import decode_response
from rlhf.compute import Compute
from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.frozen import load_frozen_policy
from rlhf.intervals import MIN_VALUES, TooFewValuesError, mean_interval, win_rate
from rlhf.models import load_tokenizer
from rlhf.positions import check_positions, longest_row
from rlhf.reward_functions import RewardFunctionError
from rlhf.rule_rewards import WordListError
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds, load_special_ids
from tasks.generation.responses import Generator
from tasks.running.metrics_file import write_metrics
from tasks.running.models import ERRORS, encode_prompts, load_prompts, start_compute
from tasks.running.outcome import Status
from tasks.running.progress import Progress
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import write_json_lines
from tasks.scoring.gold import gold_scores
from tasks.scoring.learned import Texts, rewarded_by, score_responses
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


@dataclass(frozen=True, slots=True)
class Responses:
    """A policy's responses to the prompts of a split, one per prompt."""

    texts: list[str]
    ids: list[list[int]]
    finished: list[bool]
    gold: list[float] | None
    """Gold scores, where the prompts are the embedded ones."""


class Bench(contextlib.AbstractContextManager["Bench"]):
    """Prompts, tokenizer and settings that all policies of a stage share."""

    def __init__(self, stage: Stage, split: str, *, passes: int):
        """Load the split's prompts and the SFT policy; `passes` is the total number of passes."""
        self._params = stage.params.evaluate
        self._rewards = stage.params.ppo.rewards
        self.compute: Compute = start_compute(stage.params.run)
        self._seeds = Seeds(stage.params.run.seed)
        self._tokenizer = load_tokenizer(Path("models/sft"))
        self.tokens: SpecialIds = load_special_ids(Path("models/sft"), self._tokenizer)
        path = Path(f"data/prepared/prompts/{split}.jsonl")
        rows = load_prompts(path)
        kept, encoded, self.too_long = encode_prompts(
            rows, self._tokenizer, self._params.max_prompt_tokens
        )
        if len(kept) < MIN_VALUES:
            raise TooFewValuesError(
                f"{path}: {len(kept)} of {len(rows)} prompts has at most "
                f"{self._params.max_prompt_tokens} tokens (evaluate.max_prompt_tokens); "
                f"expected {MIN_VALUES} or more"
            )
        self.rows = kept[: self._params.prompts]
        self.prompts = encoded[: self._params.prompts]
        self._generator = Generator(stage, self.compute, self.tokens)
        self._progress = Progress(stage.name, passes, "passes")
        self.sft = load_frozen_policy(Path("models/sft"), self.compute)
        own = self._params
        longest = longest_row("evaluate", own.max_prompt_tokens, own.sampling.max_new_tokens)
        check_positions(self.sft, longest)

    def responses(self, folder: Path) -> Responses:
        """One response of a policy to each prompt."""
        policy = load_frozen_policy(folder, self.compute)
        ids = self._generator.respond(
            folder,
            policy,
            self.prompts,
            self._params.sampling,
            batch_size=self._params.batch_size,
            seed=self._seeds.named("evaluate", "sampling"),
        )
        self._progress.step()
        texts = [decode_response(self._tokenizer, row) for row in ids]
        finished = [row[-1] in self.tokens.stops for row in ids]
        return Responses(texts, ids, finished, self._gold(texts, finished))

    def _gold(self, texts: Sequence[str], finished: Sequence[bool]) -> list[float] | None:
        return gold_scores([row["prompt"] for row in self.rows], texts, finished)

    def scores(self, responses: Responses, reward_model: Path) -> list[float]:
        """Normalised scores by what rewarded the round: its reward model, or rules."""
        texts = Texts(
            prompts=[row["prompt"] for row in self.rows],
            responses=responses.texts,
            finished=responses.finished,
            rows=[[*prompt, *ids] for prompt, ids in zip(self.prompts, responses.ids, strict=True)],
        )
        scores = score_responses(reward_model, texts, self._rewards, self.compute)
        self._progress.step()
        return scores

    def kl(self, responses: Responses, folder: Path) -> list[float]:
        """Exact KL to SFT of each response, in nats."""
        kl = kl_to_reference(
            load_frozen_policy(folder, self.compute),
            self.sft,
            self.prompts,
            responses.ids,
            self._params,
            self.tokens,
            compute=self.compute,
        )
        self._progress.step()
        return kl

    @property
    def served(self) -> dict[str, Any]:
        """How far a server's log-probabilities are from ours, for the metrics."""
        differences = self._generator.differences
        return {"served_logprob_difference": differences} if differences else {}

    def __exit__(self, *_: object) -> None:
        """End the progress bar, and the server that was started."""
        self._generator.__exit__()
        self._progress.close()


def run_baseline(stage: Stage) -> None:
    """Measure SFT on the held-out prompts."""
    with Bench(stage, "heldout", passes=1) as bench:
        sft = bench.responses(Path("models/sft"))
    _publish(stage, "results/baseline", _metrics("sft", bench, sft, sft, None, None), [])


def run_round(stage: Stage) -> None:
    """Measure the round's policy on the held-out prompts, against SFT and the round before."""
    key = str(stage.round_key)
    with Bench(stage, "heldout", passes=6) as bench:
        previous = bench.responses(Path(stage.round.policy))
        _measure(stage, bench, key, f"results/evaluate/{key}", name=key, previous=previous)


def run_test(stage: Stage) -> None:
    """Measure the final policy on the test prompts, once."""
    final = stage.params.final
    with Bench(stage, "test", passes=5) as bench:
        _measure(stage, bench, final, "results/test", name=final, previous=None)


def _measure(
    stage: Stage, bench: Bench, key: str, out: str, *, name: str, previous: Responses | None
) -> None:
    folder, judge = Path(f"models/rounds/{key}/policy"), Path(f"models/rounds/{key}/reward")
    sft, ours = bench.responses(Path("models/sft")), bench.responses(folder)
    scores, sft_scores = bench.scores(ours, judge), bench.scores(sft, judge)
    metrics = _metrics(name, bench, ours, sft, previous, bench.kl(ours, folder))
    metrics["proxy"] = {"mean": statistics.fmean(scores)}
    if ours.gold is None:
        metrics["proxy"] = mean_interval(scores).as_dict()
        metrics["proxy_sft"] = mean_interval(sft_scores).as_dict()
        metrics |= _win_rate(stage, bench, ours, sft) or {
            "win_rate_vs_sft": win_rate(scores, sft_scores).as_dict(),
            "win_rate_judge": rewarded_by(judge, stage.params.ppo.rewards),
        }
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


def _win_rate(stage: Stage, bench: Bench, ours: Responses, sft: Responses) -> dict[str, Any] | None:
    """The win rate by the judge of `evaluate.judge`; None where that is the round's own reward."""
    if (judge := stage.params.evaluate.judge) == "reward":
        return None
    stage.go_on_alone()  # A judge is asked once.
    share = judged_win_rate(
        judge,
        stage.params.label,
        stage.params.run,
        prompts=[row["prompt"] for row in bench.rows],
        ours=Answers(texts=ours.texts, finished=ours.finished),
        sft=Answers(texts=sft.texts, finished=sft.finished),
    )
    return {"win_rate_vs_sft": share, "win_rate_judge": f"label.{judge}"}


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

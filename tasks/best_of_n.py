"""Stage `best_of_n`: what SFT reaches without PPO, by taking the best-scored of n responses.

SFT answers held-out prompts once for all rounds; the reward model of each round chooses. Its policy
is compared on the same prompts, by the responses that `evaluate` has written.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf.best_of_n import best_of_n, kl_bound
from rlhf.chat import decode_response, encode_prompt
from rlhf.compute import Compute
from rlhf.frozen import load_frozen_policy
from rlhf.intervals import hit, hits_interval, mean_interval, win_interval
from rlhf.models import load_tokenizer
from rlhf.params.best_of_n import BestOfNParams
from rlhf.params.sampling import SamplingParams
from rlhf.responses import respond
from rlhf.reward_functions import RewardFunctionError
from rlhf.rule_rewards import WordListError
from rlhf.seeding import Seeds
from rlhf.special_ids import load_special_ids
from tasks.running.metrics_file import write_metrics
from tasks.running.models import ERRORS, start_compute
from tasks.running.progress import Progress
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import verify_model, write_json_lines
from tasks.scoring.gold import gold_scores
from tasks.scoring.learned import Texts, rewarded_by, score_responses
from tasks.tracking.spool import Output

INPUTS = ("models", "results/evaluate")


@dataclass(frozen=True, slots=True)
class Drawn:
    """SFT's responses: for each prompt as many as `best_of_n.samples`."""

    texts: list[list[str]]
    finished: list[list[bool]]
    rows: list[list[int]]
    """Token ids with those of the prompt, one prompt's responses after the other's."""
    gold: list[list[float]] | None
    """Gold scores, rounded as those of `evaluate` are, where the prompts are the embedded ones."""

    def with_prompts(self, prompts: Sequence[Any], samples: int) -> Texts:
        """All responses, each with its prompt."""
        return Texts(
            prompts=[prompt for prompt in prompts for _ in range(samples)],
            responses=[text for texts in self.texts for text in texts],
            finished=[end for ends in self.finished for end in ends],
            rows=self.rows,
        )


def run(stage: Stage) -> None:
    """Best-of-n from SFT by the reward model of each round, beside the round's policy."""
    params, final = stage.params.best_of_n, stage.params.final
    rewards = stage.params.ppo.rewards
    for model in ("models/sft", *(_judge(key) for key in stage.params.rounds)):
        verify_model(Path(model))
    compute = start_compute(stage.params.run)
    measured = {key: _measured(key, params.prompts) for key in stage.params.rounds}
    prompts = [row["prompt"] for row in measured[final]]
    progress = Progress(stage.name, 1 + len(measured), "passes")
    sampling, seeds = stage.params.evaluate.sampling, Seeds(stage.params.run.seed)
    drawn = _draw(prompts, params, sampling, seeds=seeds, compute=compute)
    if any(row["gold"] is None for rows in measured.values() for row in rows):
        drawn = replace(drawn, gold=None)  # `evaluate` had prompts that no rubric covers.
    progress.step()
    rounds, picks = [], []
    for key, theirs in measured.items():
        texts = drawn.with_prompts(prompts, params.samples)
        found = score_responses(Path(_judge(key)), texts, rewards, compute)
        scores = _by_prompt(found, params.samples)
        progress.step()
        rounds.append({"round": key, **compare(drawn.gold, scores, theirs)})
        if key == final:
            picks = _picks(theirs, drawn, scores)
    progress.close()
    own = next(entry for entry in rounds if entry["round"] == final)
    metrics = {
        "policy": final,
        "prompts": len(prompts),
        "samples": params.samples,
        "judge": "gold" if drawn.gold is not None else rewarded_by(Path(_judge(final)), rewards),
        **{name: own[name] for name in ("best", "ppo", "gain")},
        "rounds": rounds,
    }
    results = stage.staging.directory("results/best_of_n")
    write_metrics(results, metrics)
    write_json_lines(results / "samples.jsonl", picks)
    stage.final(metrics)
    stage.keep(Output("artifact", Path("results/best_of_n")))


def _judge(key: str) -> str:
    return f"models/rounds/{key}/reward"


def _measured(key: str, count: int) -> list[dict[str, Any]]:
    """What `evaluate` has written about the first prompts: the round's policy and SFT, once."""
    path = Path(f"results/evaluate/{key}/samples.jsonl")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]


def _draw(
    prompts: Sequence[Any],
    params: BestOfNParams,
    sampling: SamplingParams,
    *,
    seeds: Seeds,
    compute: Compute,
) -> Drawn:
    tokenizer = load_tokenizer(Path("models/sft"))
    tokens = load_special_ids(Path("models/sft"), tokenizer)
    encoded = [ids for p in prompts for ids in [encode_prompt(tokenizer, p)] * params.samples]
    responses = respond(
        load_frozen_policy(Path("models/sft"), compute),
        encoded,
        sampling,
        tokens,
        batch_size=params.batch_size,
        compute=compute,
        seed=seeds.named("best_of_n", "sampling"),
    )
    texts = [decode_response(tokenizer, ids) for ids in responses]
    finished = [ids[-1] in tokens.stops for ids in responses]
    gold = gold_scores([p for p in prompts for _ in range(params.samples)], texts, finished)
    return Drawn(
        _by_prompt(texts, params.samples),
        _by_prompt(finished, params.samples),
        [[*prompt, *ids] for prompt, ids in zip(encoded, responses, strict=True)],
        None if gold is None else _by_prompt([round(value, 4) for value in gold], params.samples),
    )


def _by_prompt(values: Sequence[Any], samples: int) -> list[list[Any]]:
    return [list(values[start : start + samples]) for start in range(0, len(values), samples)]


def compare(
    gold: Sequence[Sequence[float]] | None,
    scores: Sequence[Sequence[float]],
    theirs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Best-of-n by one reward model against the policy that PPO made with it.

    `best` (of all samples), `ppo` and `gain` (PPO's less the best, paired by prompt) are of the
    gold scores; where there are none, of the reward model's own, which both were chosen by.
    Intervals are over the prompts.

    Args:
        gold: of SFT's responses to each prompt; None where there is no rubric.
        scores: of the reward model, for the same responses.
        theirs: the prompts' rows in `results/evaluate/<round>/samples.jsonl`.
    """
    proxies = [row["score"] for row in theirs]
    ours, policy = scores, proxies
    wins = None
    if gold is not None:
        ours, policy = gold, [row["gold"] for row in theirs]
        wins = [
            [hit(value, row["gold_sft"]) for value in values]
            for values, row in zip(gold, theirs, strict=True)
        ]
    samples = len(scores[0])
    best = [best_of_n(s, v, n=samples) for s, v in zip(scores, ours, strict=True)]
    gain = [ppo - other for ppo, other in zip(policy, best, strict=True)]
    return {
        "best": mean_interval(best).as_dict(),
        "ppo": mean_interval(policy).as_dict(),
        "gain": mean_interval(gain).as_dict(),
        "policy": {
            "gold": None if gold is None else mean_interval(policy).as_dict(),
            "win_rate_vs_sft": None
            if gold is None
            else hits_interval([hit(row["gold"], row["gold_sft"]) for row in theirs]).as_dict(),
            "proxy": mean_interval(proxies).as_dict(),
        },
        "curve": [_point(n, scores, gold, wins) for n in sizes(samples)],
    }


def sizes(samples: int) -> list[int]:
    """The n of the curve: powers of two below the number of samples, and that number."""
    return [*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples]


def _point(
    n: int,
    scores: Sequence[Sequence[float]],
    gold: Sequence[Sequence[float]] | None,
    wins: Sequence[Sequence[float]] | None,
) -> dict[str, Any]:
    def best(values: Sequence[Sequence[float]]) -> list[float]:
        return [best_of_n(s, v, n=n) for s, v in zip(scores, values, strict=True)]

    return {
        "n": n,
        "kl_bound": kl_bound(n),
        "gold": None if gold is None else mean_interval(best(gold)).as_dict(),
        "win_rate_vs_sft": None if wins is None else _win_rate(n, scores, wins),
        "proxy": mean_interval(best(scores)).as_dict(),
    }


def _win_rate(
    n: int, scores: Sequence[Sequence[float]], wins: Sequence[Sequence[float]]
) -> dict[str, float | int]:
    """The interval is that of one draw of n for each prompt, from which a mean varies no more."""
    won, tied = (
        math.fsum(
            best_of_n(s, [float(each == which) for each in own], n=n)
            for s, own in zip(scores, wins, strict=True)
        )
        for which in (1.0, 0.5)
    )
    # Sums of expectations may be above the number of prompts by a rounding.
    return win_interval(min(won, len(scores) - tied), tied, len(scores)).as_dict()


def _picks(
    theirs: Sequence[Mapping[str, Any]], drawn: Drawn, scores: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """For each prompt the response with the highest score, to read."""
    picks = []
    for number, (row, found) in enumerate(zip(theirs, scores, strict=True)):
        first = max(range(len(found)), key=found.__getitem__)
        picks.append(
            {
                "prompt_id": row["prompt_id"],
                "prompt": row["prompt"],
                "response": drawn.texts[number][first],
                "finished": drawn.finished[number][first],
                "gold": None if drawn.gold is None else round(drawn.gold[number][first], 4),
                "score": round(found[first], 4),
            }
        )
    return picks


if __name__ == "__main__":
    errors = {**ERRORS, RewardFunctionError: "bad_input", WordListError: "bad_input"}
    sys.exit(run_stage("best_of_n", run, inputs=INPUTS, errors=errors))

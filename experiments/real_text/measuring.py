"""What a finished run of `real_text` has come to: its results, its judge, what it took.

    python -m experiments.real_text.measuring TASK DATA    # in the run's folder; prints the record

A process of its own in that folder, since the run's params.yaml says with which bits to compute.
"""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.real_text.judge import preferences_of
from experiments.real_text.worlds import FILES, WORLDS, Pair, World
from feedback.judgments import Pair as Judged
from preferences.baselines import bag_of_words
from preferences.grouped_shares import longer_wins
from preferences.records import pair_id
from rlhf.chat import decode_response, encode_prompt
from rlhf.compute import Compute
from rlhf.intervals import hits_interval
from rlhf.models import load_policy, load_tokenizer
from rlhf.responses import respond
from rlhf.seeding import Seeds
from rlhf.special_ids import load_special_ids
from tasks.params.loading import Params, RunParams, load_params
from tasks.scoring.reward_annotator import ask_reward_model

FROM_SUMMARY = (
    "commit",
    "machine",
    "seconds",
    "peak_rss_bytes",
    "sft",
    "policies",
    "reward_models",
    "test",
    "best_of_n",
)


def measured(run: Path, world: World) -> dict[str, Any]:
    """The record of a run: all that its page shows.

    Raises:
        OSError: the run has not finished.
    """
    params = load_params(run / "params.yaml")
    summary = json.loads((run / "reports/summary.json").read_text(encoding="utf-8"))
    policy = run / f"models/rounds/{params.final}/policy"
    return {
        **{name: summary[name] for name in FROM_SUMMARY if name in summary},
        "counts": {
            "demonstrations": len(world.demonstrations),
            "pairs": len(world.pairs),
            "judge_pairs": len(world.judge_pairs),
        },
        "unseen": _on_unseen(run, params, world),
        "disk_bytes": sum(
            path.stat().st_size
            for path in (run / ".dvc/cache").rglob("*")
            if path.is_file() and not path.is_symlink()
        ),
        "samples": [
            {"prompt": prompt, "sft": before, "policy": after}
            for prompt, before, after in zip(
                world.shown,
                _responses(run / "models/sft", params, world.shown),
                _responses(policy, params, world.shown),
                strict=True,
            )
        ],
    }


def _on_unseen(run: Path, params: Params, world: World) -> dict[str, Any]:
    """Share of the unseen pairs that each orders as labelled, with its interval."""
    train, unseen = preferences_of(world.pairs), preferences_of(world.unseen)
    reward_model = run / f"models/rounds/{params.final}/reward"
    found = {"bag_of_words": bag_of_words(train, unseen), "longer_wins": longer_wins(unseen)}
    return {
        "reward_model": _accuracy(reward_model, world.unseen, params.run),
        "judge": _accuracy(run / "mine/judge", world.unseen, params.run),
        **{name: share.to_json() for name, share in found.items() if share},
    }


def _accuracy(model: Path, pairs: Sequence[Pair], run: RunParams) -> Mapping[str, float]:
    asked = [
        Judged(
            pair_id=pair_id(pair["prompt"], pair["chosen"], pair["rejected"]),
            round="unseen",
            prompt=pair["prompt"],
            response_a=pair["chosen"],
            response_b=pair["rejected"],
        )
        for pair in pairs
    ]
    judgments = ask_reward_model(model, asked, run)
    hits = {"a": 1.0, "tie": 0.5}
    return hits_interval([hits.get(each.choice, 0.0) for each in judgments]).as_dict()


def _responses(folder: Path, params: Params, prompts: Sequence[str]) -> list[str]:
    tokenizer, compute = load_tokenizer(folder), Compute(torch.device("cpu"), params.run.precision)
    rows = respond(
        load_policy(folder, compute.device),
        [encode_prompt(tokenizer, prompt) for prompt in prompts],
        params.evaluate.sampling,
        load_special_ids(folder, tokenizer),
        batch_size=len(prompts),
        compute=compute,
        seed=Seeds(params.run.seed).named("real_text", "samples"),
    )
    return [decode_response(tokenizer, row) for row in rows]


def main() -> None:
    """Print the record of the run in this folder."""
    task, data = sys.argv[1:]
    record = measured(Path.cwd(), WORLDS[task](Path(data), FILES))
    sys.stdout.write(json.dumps(record, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()

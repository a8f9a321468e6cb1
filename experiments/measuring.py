"""Policies that others trained from a finished run's SFT, measured as the run's own policy is."""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import device
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.chat import decode_response, encode_prompt
from rlhf.compute import Compute
from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.intervals import mean_interval, win_rate
from rlhf.models import load_policy, load_tokenizer
from rlhf.params.evaluate import EvaluateParams
from rlhf.responses import respond
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds, load_special_ids
from tasks.params.loading import load_params
from tasks.scoring.gold import gold_scores

REPOSITORY = Path(__file__).resolve().parents[1]
COMPUTE = Compute(device("cpu"), "float32")
Run = TypeVar("Run")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of the embedded world: its SFT, and how one of its policies was measured."""

    root: Path
    seed: int
    evaluate: EvaluateParams
    final: str
    """The newest round's key."""
    tokenizer: PreTrainedTokenizerBase
    tokens: SpecialIds
    sft: PreTrainedModel
    measured: Sequence[Mapping[str, Any]]
    """`results/evaluate/ROUND/samples.jsonl`: SFT and the round's policy, prompt by prompt."""
    ppo: Mapping[str, Any]
    """The metrics of the round's policy."""


def read_run(root: Path, *, key: str | None = None) -> FinishedRun:
    """Read what a run has left; `key` names the round to compare with, else the last.

    Raises:
        OSError: a file of the run is missing.
        ValueError: its params or its SFT model are missing or not valid.
    """
    params = load_params(root / "params.yaml")
    tokenizer = load_tokenizer(root / "models/sft")
    results = root / "results/evaluate" / (key or params.final)
    with (results / "samples.jsonl").open(encoding="utf-8") as lines:
        measured = [json.loads(line) for line in lines]
    return FinishedRun(
        root=root,
        seed=params.run.seed,
        evaluate=params.evaluate,
        final=params.final,
        tokenizer=tokenizer,
        tokens=load_special_ids(root / "models/sft", tokenizer),
        sft=load_policy(root / "models/sft", COMPUTE.device),
        measured=measured,
        ppo=json.loads((results / "metrics.json").read_text(encoding="utf-8")),
    )


def measure(run: FinishedRun, policy: PreTrainedModel) -> dict[str, Any]:
    """As `tasks/evaluate.py` does, with the same draws; the rest is as recorded."""
    prompts = [row["prompt"] for row in run.measured]
    encoded = [encode_prompt(run.tokenizer, prompt) for prompt in prompts]
    params, tokens = run.evaluate, run.tokens
    ids = respond(
        policy,
        encoded,
        params.sampling,
        tokens,
        batch_size=params.batch_size,
        compute=COMPUTE,
        seed=Seeds(run.seed).named("evaluate", "sampling"),
    )
    kl = kl_to_reference(policy, run.sft, encoded, ids, params, tokens, compute=COMPUTE)
    texts = [decode_response(run.tokenizer, row) for row in ids]
    finished = [row[-1] in tokens.stops for row in ids]
    gold = gold_scores(prompts, texts, finished)
    assert gold is not None, "the runs of this experiment are of the embedded prompts"
    gold = [round(score, 4) for score in gold]  # As in the samples that it is compared with.
    sft, ppo = ([row[name] for row in run.measured] for name in ("gold_sft", "gold"))
    return {
        "gold": mean_interval(gold).as_dict(),
        "win_rate_vs_sft": win_rate(gold, sft).as_dict(),
        "kl": mean_interval(kl).as_dict(),
        "length": sum(map(len, ids)) / len(ids),
        "finished": sum(finished) / len(finished),
        "distinct_2": distinct_ngrams(texts, 2),
        "less_ppo": mean_interval([a - b for a, b in zip(gold, ppo, strict=True)]).as_dict(),
        "samples": [
            {"prompt": prompt, "response": text, "gold": round(score, 2)}
            for prompt, text, score in list(zip(prompts, texts, gold, strict=True))[:6]
        ],
    }


def read_all(read: Callable[[Path], Run], roots: Sequence[Path]) -> list[Run]:
    """Every run that the command names, before anything is trained on the first of them.

    Raises:
        SystemExit: with 2, one of them cannot be read; which, and why, is said.
    """
    found = []
    for root in roots:
        try:
            found.append(read(root))
        except (OSError, ValueError) as error:
            say(f"{root} is not a folder in which `make repro` has finished: {error}")
            raise SystemExit(2) from None
    return found


def options_of(name: str, description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of an experiment on finished runs: `runs`, `params` and `out`."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=description)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--params", type=Path, default=REPOSITORY / f"experiments/{name}.yaml")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs/results")
    return parser.parse_args(arguments)


def write_results(out: Path, name: str, found: object, page: str) -> None:
    """Write `NAME.json` and `NAME.md`."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    (out / f"{name}.json").write_text(text, encoding="utf-8")
    (out / f"{name}.md").write_text(page, encoding="utf-8")


def interval(estimate: Mapping[str, float], digits: int) -> str:
    """`8.70 [8.55, 8.85]`."""
    mean, low, high = (f"{estimate[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")

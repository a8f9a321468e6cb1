"""Writes what the stages of a run leave behind, with invented numbers, for tests of the report."""

import hashlib
import json
import math
from pathlib import Path

from tasks.params.loading import RoundParams
from tasks.reporting.descent import SFT
from tasks.running.staging import write_json_lines


def write_world(
    root: Path, rounds: tuple[str, ...] = ("r1", "r2", "r3"), *, gold: bool = True
) -> None:
    """All files that the report reads. Without `gold`, as for data that has no rubric."""
    _metrics(root / "results" / "baseline", "sft", 0, gold=gold)
    before = "models/sft"
    reward_before = "models/sft"
    _losses(root / "results" / "base", 7.1)
    _losses(root / "results" / "sft", 2.5)
    (root / "results/base/metrics.json").write_text('{"tokens": 1843200, "loss": 0.8}')
    (root / "results/sft/metrics.json").write_text('{"demonstrations": 29990, "too_long": 10}')
    _manifest(root / "models/base", {"data/prepared/corpus.jsonl": "c0" * 16})
    _manifest(
        root / "models/sft",
        {
            "models/base": folder_hash("models/base"),
            "data/prepared/demonstrations.jsonl": "de" * 16,
        },
    )
    for number, key in enumerate(rounds, start=1):
        models = f"models/rounds/{key}"
        preferences = f"data/rounds/{key}/preferences"
        _labels(root / "data" / "rounds" / key, key)
        _manifest(
            root / models / "reward",
            {reward_before: folder_hash(reward_before), preferences: f"{number:02d}" * 16 + ".dir"},
        )
        _manifest(
            root / models / "policy",
            {
                before: folder_hash(before),
                "models/sft": folder_hash("models/sft"),
                f"{models}/reward": folder_hash(f"{models}/reward"),
                "data/prepared/prompts": "ee" * 16 + ".dir",
            },
        )
        before, reward_before = f"{models}/policy", f"{models}/reward"
        _reward_metrics(root / "results" / "reward" / key, key, number)
        _losses(root / "results" / "reward" / key, 0.7)
        _verdict(root / "results" / "validate" / key, number)
        _history(root / "results" / "ppo" / key, number, gold=gold)
        _metrics(root / "results" / "evaluate" / key, key, number, gold=gold)
        _samples(root / "results" / "evaluate" / key / "samples.jsonl", gold=gold)
    if rounds:
        _metrics(root / "results" / "test", rounds[-1], len(rounds), gold=gold)
        _best_of_n(root / "results" / "best_of_n", rounds, gold=gold)


def chained(keys: tuple[str, ...] = ("r1", "r2", "r3")) -> dict[str, RoundParams]:
    """Each round goes on from the one before it."""
    found = {}
    policy = reward_model = SFT
    preferences = "data/prepared/preferences"
    for key in keys:
        found[key] = RoundParams(
            policy=policy, start=policy, reward_model=reward_model, preferences=preferences
        )
        policy, reward_model = f"models/rounds/{key}/policy", f"models/rounds/{key}/reward"
        preferences = f"data/rounds/{key}/preferences"
    return found


def folder_hash(path: str) -> str:
    """The hash by which all manifests refer to a folder."""
    return hashlib.md5(path.encode()).hexdigest() + ".dir"


def _labels(folder: Path, key: str) -> None:
    """1,500 judgments of as many pairs: of 1,200 in training, 200 held out and 100 left out.

    The first 500 pairs are two each on 250 prompts, which are the same in each round.
    """
    (folder / "preferences").mkdir(parents=True)
    pairs = [f"{key}-{number}" for number in range(1500)]
    who = [("sim-1", "rubric")] * 1000 + [("<b>ben", "human")] * 500
    rows = [
        {"judgment_id": f"of {pair}", "pair_id": pair, "annotator_id": name, "kind": kind}
        for pair, (name, kind) in zip(pairs, who, strict=True)
    ]
    write_json_lines(folder / "judgments.jsonl", rows)
    prompts = [f"p{number // 2}" for number in range(500)] + [f"on {pair}" for pair in pairs[500:]]
    comparisons = [
        {"pair_id": pair, "prompt_id": prompt} for pair, prompt in zip(pairs, prompts, strict=True)
    ]
    write_json_lines(folder / "comparisons.jsonl", comparisons)
    for side, chosen in (("train", pairs[:1200]), ("heldout", pairs[1200:1400])):
        preferences = [{"pair_id": pair} for pair in chosen]
        write_json_lines(folder / f"preferences/{side}.jsonl", preferences)


def _interval(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": 512}


def _metrics(folder: Path, policy: str, number: int, *, gold: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {
        "policy": policy,
        "gold": _interval(4.4 + 1.4 * number, 0.22) if gold else None,
        "win_rate_vs_sft": _interval(0.5 + 0.41 * (1 - math.exp(-number)), 0.028),
        "win_rate_vs_previous": _interval(0.6, 0.04) if gold and number else None,
        "kl": _interval(1.7 * number, 0.2),
        "proxy": {"mean": 0.4 * number},
        "length": {"mean": 20.5 + number},
        "finished": 0.98,
        "distinct_2": 0.31,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))


def _best_of_n(folder: Path, rounds: tuple[str, ...], *, gold: bool) -> None:
    """Best of 1, 8 and 64; later reward models choose better."""
    entries = []
    for number, key in enumerate(rounds, start=1):
        curve = [
            {
                "n": n,
                "kl_bound": math.log(n) - (n - 1) / n,
                "gold": _interval(4.4 + 0.2 * number * power, 0.4) if gold else None,
                "win_rate_vs_sft": _interval(0.5 + 0.02 * number * power, 0.08) if gold else None,
                "proxy": _interval(0.4 * power, 0.2),
            }
            for power, n in ((0, 1), (3, 8), (6, 64))
        ]
        policy = {
            "gold": _interval(4.5 + 1.4 * number, 0.4) if gold else None,
            "win_rate_vs_sft": _interval(0.9, 0.05) if gold else None,
            "proxy": _interval(1.5, 0.2),
        }
        judged = "gold" if gold else "proxy"
        ppo, best = policy[judged], curve[-1][judged]
        compared = {"ppo": ppo, "best": best, "gain": _interval(ppo["mean"] - best["mean"], 0.5)}
        entries.append({"round": key, **compared, "policy": policy, "curve": curve})
    metrics = {
        "policy": rounds[-1],
        "prompts": 128,
        "samples": 64,
        "judge": "gold" if gold else "reward_model",
        **{name: entries[-1][name] for name in ("best", "ppo", "gain")},
        "rounds": entries,
    }
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))


def _reward_metrics(folder: Path, key: str, number: int) -> None:
    folder.mkdir(parents=True)
    metrics = {
        "round": key,
        "pairs": 1500 * number,
        "accuracy_before": None if number == 1 else _interval(0.53 + 0.01 * number, 0.05),
        "accuracy_after": _interval(0.7 + 0.01 * number, 0.045),
        "longer_wins": 0.55,
        "ece": 0.04,
        "nll": 0.55,
        "heldout_accuracy": 0.74,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "reliability.csv").write_text(
        "confidence,accuracy,low,high,pairs\n0.6,0.5,0.4,0.6,120\n0.9,0.8,0.7,0.85,380\n"
    )


def _losses(folder: Path, start: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{step},{start * math.exp(-step / 20):.6g},1.5" for step in range(1, 31)]
    (folder / "history.csv").write_text("\n".join(["step,loss,grad_norm", *rows]) + "\n")


def _verdict(folder: Path, number: int) -> None:
    """The second round's labels have what the gate objects to."""
    odd = number == 2
    folder.mkdir(parents=True)
    rows = {"fresh": 1500, "earlier": 1500 * (number - 1), "train": 1200 * number}
    rows |= {"heldout": 300 * number, "quarantined": 7 if odd else 0}
    verdict = {
        "verdict": "passed",
        "reasons": [],
        "rows": rows,
        "rules": {
            "duplicates": {"severity": "quarantine", "rows": 7 if odd else 0, "allowed": 0},
            "damaged_text": {"severity": "warn", "rows": 3 if odd else 0, "allowed": 0},
        },
        "numbers": {"first_wins": {"severity": "warn", "value": 0.1, "kept": not odd}},
    }
    (folder / "verdict.json").write_text(json.dumps(verdict))


def _history(folder: Path, number: int, *, gold: bool) -> None:
    folder.mkdir(parents=True)
    names = ["step", "objective/score", "objective/gold", "objective/kl", "objective/entropy"]
    names += ["policy/clip_fraction", "value/explained_variance"]
    lines = [",".join(names)]
    for step in range(24):
        wave = 0.08 * math.sin(2.3 * step + number)
        rise = 1 - math.exp(-step / 8)
        row = [
            step,
            1.1 * rise + wave,
            4.4 + 1.4 * (number - 1 + rise) + 3 * wave if gold else "",
            1.7 * (number - 1 + rise) + wave,
            1.4 - 0.2 * number - 0.15 * rise + wave / 2,
            0.18 - 0.08 * rise + wave / 3,
            "" if step == 0 else 0.75 * rise + wave,
        ]
        lines.append(",".join(str(cell) for cell in row))
    (folder / "history.csv").write_text("\n".join(lines) + "\n")


def _samples(path: Path, *, gold: bool) -> None:
    request = "hi, my order 47 was a grey kettle and it is still not here. where is it? thanks, Ada"
    before = "We are open from nine to five. We are open from nine to five."
    after = (
        "Hello Ada, I am sorry that order 47 is late. Your grey kettle is on its way to you now."
    )
    with path.open("w") as file:
        for number in range(40):
            row = {
                "prompt_id": f"p{number}",
                "prompt": f"{request} ({number})",
                "sft": before,
                "sft_finished": number % 2 == 0,
                "response": after,
                "finished": True,
                "gold_sft": 4.0 + number % 3 if gold else None,
                "gold": 9.5 - (number * 7 % 40) / 5 if gold else None,
                "score": 1.25,
            }
            file.write(json.dumps(row) + "\n")


def _manifest(folder: Path, inputs: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    digest = folder.as_posix()[-1:].encode().hex() + "5a" * 31
    files = {"model.safetensors": {"size": 2306048, "sha256": digest}}
    manifest = {"files": files, "inputs": inputs, "params": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))

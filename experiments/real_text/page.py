"""`docs/results/real_text.md`, from the records of both tasks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.measuring import interval
from tasks.reporting.best_of_n import worth
from tasks.reporting.result_table import earlier_words

RECORDS = Path("docs/results/data/real_text")
PAGE = Path("docs/results/real_text.md")
FIRST = "prepare"
"""The stage that each run begins with."""
HEAD = """# Real text on SmolLM2-135M

Written by `python -m experiments.real_text TASK --data DATA --model FOLDER --run FOLDER`, all
numbers from `data/real_text/TASK.json`. Each task is one round from preferences alone with the
preset `smollm2-135m` (`experiments/real_text/params.yaml` has what differs). Win rates are of a
judge, a reward model trained on other data (`experiments/real_text/worlds.py`); no stage learns
from it. Intervals are of 95 % over prompts. One seed each, on a busy machine: minutes say little.

**`polite`: the judge prefers the policy to SFT, and whoever reads it does not.** It has learnt that
"indeed" is polite and that a sentence about the answer costs nothing: the judge, trained on other
pairs of the same kind, is fooled with the reward model.

**`sentiment`: whoever reads it agrees with the judge.** The policy praises where SFT rambles, in
shorter and less broken sentences, though not always in ones that mean something. It ran at the
preset's own rate of PPO, and ended nearer to SFT.
"""


def write_record(root: Path, task: str, record: str) -> None:
    """Write the record of one task's run, which is JSON."""
    path = root / RECORDS / f"{task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record, encoding="utf-8")


def write_page(root: Path) -> Path:
    """Write the page from the records that are there; its path."""
    paths = sorted((root / RECORDS).glob("*.json"))
    parts = [_task(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    (root / PAGE).write_text("\n".join([HEAD, *parts]), encoding="utf-8")
    return root / PAGE


def _task(name: str, record: Mapping[str, Any]) -> str:
    counts, unseen = record["counts"], record["unseen"]
    sft, *rounds = record["policies"]
    heldout = record["sft"]["heldout"]
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{counts['demonstrations']} demonstrations, {counts['pairs']} pairs for the reward "
            f"model, {counts['judge_pairs']} for the judge. SFT's loss on "
            f"{heldout['demonstrations']} held-out demonstrations: {heldout['base']:.3f} before, "
            f"{heldout['sft']:.3f} after, in nats a token.",
            "",
            f"Share of {unseen['judge']['n']} pairs that neither has seen, ordered as labelled:",
            "",
            "| reward model | judge | bag of words | longer wins |",
            "|---|---|---|---|",
            _row(
                interval(unseen[one], 3)
                for one in ("reward_model", "judge", "bag_of_words", "longer_wins")
            ),
            "",
            "| policy | win rate vs SFT, by the judge | proxy | KL, nats | tokens | ended | "
            "distinct bigrams |",
            "|---|---|---|---|---|---|---|",
            _policy("SFT", sft, rounds[-1]["proxy_sft"]),
            *(_policy(policy["name"], policy, policy["proxy"]) for policy in rounds),
            _policy("test prompts", record["test"], record["test"]["proxy"]),
            "",
            *_best_of_n(record["best_of_n"]),
            *_cost(record),
            "",
            "Responses to prompts that were written for this page:",
            "",
            *(line for sample in record["samples"] for line in _sample(sample)),
        ]
    )


def _policy(name: str, policy: Mapping[str, Any], proxy: Mapping[str, float]) -> str:
    wins = policy["win_rate_vs_sft"]
    return _row(
        (
            name,
            interval(wins, 3) if wins else "0.500",
            interval(proxy, 2),
            interval(policy["kl"], 2),
            f"{policy['length']['mean']:.1f}",
            f"{policy['finished']:.2f}",
            f"{policy['distinct_2']:.2f}",
        )
    )


def _best_of_n(found: Mapping[str, Any] | None) -> list[str]:
    return [] if found is None else [f"Is PPO worth it? {worth(found)}", ""]


def _cost(record: Mapping[str, Any]) -> list[str]:
    peaks, seconds, machine = record["peak_rss_bytes"], record["seconds"], record["machine"]
    earlier = seconds.get("earlier", {})
    stages = {**earlier, **seconds["stages"]}
    took = f"{seconds['total'] / 60:.0f} minutes"
    if earlier:
        took += f", {earlier_words(seconds['total'], earlier)}"
    elif FIRST not in stages:
        took += " for the last command; of the stages that others had run before it no time is kept"
    else:
        took += " in all"
    return [
        f"On {machine['threads']} threads of {machine['cpu']}, {took}; DVC's cache holds "
        f"{record['disk_bytes'] / 1e9:.1f} GB.",
        "",
        "| stage | minutes | largest memory, GB |",
        "|---|---:|---:|",
        *(
            _row((stage, f"{seconds / 60:.1f}", f"{peaks[stage] / 1e9:.1f}"))
            for stage, seconds in stages.items()
        ),
    ]


def _sample(sample: Mapping[str, str]) -> list[str]:
    prompt, before, after = (" ".join(sample[name].split()) for name in ("prompt", "sft", "policy"))
    return [f"> **{prompt}**", ">", f"> SFT: {before}", ">", f"> PPO: {after}", ""]


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"

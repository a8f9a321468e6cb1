"""Writes `docs/benchmarks.md` from what `benchmarks.speed` measured."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import scaling_page
from benchmarks.speed_world import (
    ANSWER,
    BATCH,
    ENDING,
    MINIBATCHES,
    PASSES,
    PROMPT,
    SIZES,
    STEPS,
    mean_length,
)

PHASES = ("rollout", "scoring", "update")
NAMES = {
    "ppo-separate": "PPO iteration, separate value model",
    "ppo-shared": "PPO iteration, shared trunk",
    "ppo-separate-padded": "PPO iteration, separate value model, padded rows",
    "ppo-shared-padded": "PPO iteration, shared trunk, padded rows",
    "sft": "SFT step",
    "reward": "reward-model step",
}
DEVICES = {
    "cpu": ("On a CPU", "CPU seconds of all threads"),
    "cuda": ("On a GPU", "seconds by the wall, GPU synchronised"),
}


INTRODUCTION = (
    "Written by `make bench` and `make bench-gpu` (benchmarks/speed.py). Random weights; a PPO "
    f"iteration has {PASSES * BATCH} responses to prompts of {PROMPT} tokens, {PASSES} passes of "
    f"{MINIBATCHES} minibatches, and answers of {ANSWER} tokens (uniform) or, as if each token "
    f"ended one with chance {ENDING:.3f}, of {mean_length():.1f} on average (ragged; the lengths "
    "are drawn beforehand and the same for both, unless a line below says otherwise). SFT and "
    f"reward training: {STEPS - 1} steps of {BATCH} examples or pairs with the same prompts and "
    f"{ANSWER} answer tokens (ragged: 5 to {ANSWER}). "
    "float32, AdamW, models and token ids the same for both. In our PPO several responses share a "
    "row (`ppo.packing`), except in the lines that say padded rows, the default.\n\n"
    "Bits of either side: native takes the instructions that the processor has, portable (our "
    "default in the pipeline, for the same bytes everywhere) confines it to AVX2. Both native is "
    "what `make bench` compares; `python -m benchmarks.speed --bits portable` shows what the "
    "portable bits cost us beside a TRL that is not confined. Rows with portable bits on TRL's "
    "side, too, are older: our pins stood in the environment that TRL inherited, so that **both** "
    "were held to AVX2. (Until 2026-11-24 this page wrongly said that TRL took what the processor "
    "has.) On Zen 4, where they were measured, that changes little; on Intel processors with "
    "AVX-512 both sides may be much faster native."
)

MEMORY = (
    "The most of any run. On a CPU it is the resident memory of the whole process, imports "
    "included; on a GPU it is what torch allocated there."
)


def write_page(path: Path, results: Path) -> None:
    """The page, from what has been measured so far."""
    lines = ["# Benchmarks", "", INTRODUCTION, ""]
    for device, (title, unit) in DEVICES.items():
        lines += [f"## {title}", ""]
        names = [f"{device}-{size}{suffix}.json" for size in SIZES for suffix in ("", "-portable")]
        files = [results / name for name in names]
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
        if not found:
            lines += ["**Not measured**: no such device was at hand. The script is complete.", ""]
            continue
        lines += _section(found, unit)
    if (file := results / "scaling.json").is_file():
        lines += scaling_page.section(json.loads(file.read_text(encoding="utf-8")))
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _section(measured: Sequence[dict[str, Any]], unit: str) -> list[str]:
    """What one device did, each size in a measurement of its own."""
    rows = [row | {"bits": _bits(found)} for found in measured for row in found["rows"]]
    left_out = [size for size in SIZES if size not in ("tiny", *(row["size"] for row in rows))]
    return [
        *(_conditions(found, unit) for found in measured),
        "",
        "Above as many as there are cores, the load average says that other work had its share of "
        "caches and memory, which lengthens the seconds of both sides. Not measured here: "
        f"{', '.join(left_out) or 'nothing'}.",
        "",
        "| work | size | lengths | bits: ours / TRL | ours | TRL | TRL / ours |",
        "|---|---|---|---|---:|---:|---:|",
        *(line for row in rows for line in (_comparison(row, rows), *_generation(row))),
        "",
        "TRL has no PPO with a shared trunk; those rows compare with its separate value model.",
        "",
        "| PPO iteration | size | lengths | bits: ours / TRL | side | rollout | scoring | update | "
        "tokens sampled | tokens/s | update, share of ceiling | rollout, share of bandwidth |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(line for row in rows if row["work"].startswith("ppo") for line in _phases(row)),
        "",
        "Ceiling: the MLP's product at the shape of a minibatch, measured at the end of each "
        "process; the share counts the products of our update (`torch.utils.flop_counter`) "
        "alone. Bandwidth: what the product of a matrix of 1 GiB and a vector reads in a second; "
        f"the share counts the policy's weights once in each of {ANSWER} steps, and neither the "
        "prompts nor the cache. On a CPU it is products and not memory that bound "
        f"{PASSES * BATCH} rows at once.",
        "",
        "| peak memory | size | lengths | bits: ours / TRL | ours | TRL | ours / TRL |",
        "|---|---|---|---|---:|---:|---:|",
        *(_memory(row, rows) for row in rows),
        "",
        MEMORY,
        "",
    ]


def _memory(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The most that any run of either side took."""
    cells = [NAMES[row["work"]], *(row[name] for name in ("size", "lengths", "bits"))]
    ours = _peak(row["ours"])
    cells += [f"{ours / 1e6:.0f} MB", "–", "–"]
    if theirs := row_beside(row, rows).get("trl"):
        cells[-2:] = [f"{_peak(theirs) / 1e6:.0f} MB", f"{ours / _peak(theirs):.0%}"]
    return f"| {' | '.join(cells)} |"


def _peak(results: Sequence[dict[str, Any]]) -> int:
    return max(result["peak"] for result in results)


def _conditions(found: dict[str, Any], unit: str) -> str:
    runs, load = found["runs"], found["load"]
    many = f"medians of {runs} runs in turns, in brackets the least and the most"
    return (
        f"- {found['rows'][0]['size']}, {_bits(found)}: {found['machine']}{_kernels(found)}, "
        f"{found['threads']} thread(s), {unit}; "
        f"{many if runs > 1 else 'one run of each side, so no spread is known'}; load average "
        f"{min(load):.1f} to {max(load):.1f}; ragged lengths {found['ends']}; "
        f"{_versions(found) if any('trl' in row for row in found['rows']) else 'without TRL'}."
    )


def _bits(found: dict[str, Any]) -> str:
    return f"{found['bits']['ours']} / {found['bits']['trl']}"


def _kernels(found: dict[str, Any]) -> str:
    """What torch itself says that each side's kernels took, where a measurement recorded it."""
    runs = [(side, run) for row in found["rows"] for side in ("ours", "trl")
            for run in row.get(side, []) if "kernels" in run]  # fmt: skip
    seen = sorted({f"{side} {run['kernels']}" for side, run in runs})
    return f", kernels: {', '.join(seen)}" if seen else ""


def _versions(found: dict[str, Any]) -> str:
    trl = found["trl"]
    return f"TRL {trl['ppo']} for PPO, {trl['sft']} for SFT, {trl['reward']} for reward training"


def _seconds(results: Sequence[dict[str, Any]]) -> list[float]:
    """One number for each run: the whole iteration, or the median step."""
    return [
        result["phases"]["total"] if "phases" in result else statistics.median(result["steps"])
        for result in results
    ]


def _comparison(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    ours = _seconds(row["ours"])
    beside = row_beside(row, rows)
    where = [row[name] for name in ("size", "lengths", "bits")]
    cells = [NAMES[row["work"]], *where, _spread(ours), "–", "–"]
    if "trl" in beside:
        theirs = _seconds(beside["trl"])
        ratio = statistics.median(theirs) / statistics.median(ours)
        cells[-2:] = [_spread(theirs), f"**{ratio:.2f}**"]
    return f"| {' | '.join(cells)} |"


def row_beside(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of the same measurement that has TRL's runs, if any has: all PPO shares one."""
    work = "ppo-separate" if row["work"].startswith("ppo") else row["work"]
    same = {name: row[name] for name in ("size", "lengths", "bits")} | {"work": work}
    return next(other for other in rows if same.items() <= other.items())


def _generation(row: dict[str, Any]) -> list[str]:
    """The rollouts of both sides alone, where there are two."""
    if row["work"] != "ppo-separate" or "trl" not in row:
        return []
    ours, theirs = (
        [run["phases"]["rollout"] / run["phases"]["tokens"] * 1000 for run in row[side]]
        for side in ("ours", "trl")
    )
    ratio = statistics.median(theirs) / statistics.median(ours)
    where = [row[name] for name in ("size", "lengths", "bits")]
    cells = ["generation, 1,000 tokens", *where, _spread(ours), _spread(theirs), f"**{ratio:.2f}**"]
    return [f"| {' | '.join(cells)} |"]


def _phases(row: dict[str, Any]) -> list[str]:
    lines = []
    for side in ("ours", "trl"):
        if side not in row:
            continue
        results = row[side]
        phases = [result["phases"] for result in results]
        middle = {name: statistics.median(found[name] for found in phases) for name in phases[0]}
        share, read = "–", "–"
        if "bandwidth" in results[0]:
            reads = [ANSWER * one["weights"] / one["phases"]["rollout"] / one["bandwidth"]
                     for one in results]  # fmt: skip
            read = f"{statistics.median(reads):.0%}"
        if flops := results[0].get("flops"):
            shares = [flops / one["phases"]["update"] / one["ceiling"] for one in results]
            share = f"{statistics.median(shares):.0%}"
        lines.append(
            f"| {NAMES[row['work']].partition(', ')[2]} | {row['size']} | {row['lengths']} | "
            f"{row['bits']} | {side} | {' | '.join(f'{middle[name]:.2f}' for name in PHASES)} | "
            f"{middle['tokens']:.0f} | {middle['tokens'] / middle['rollout']:.0f} | {share} | "
            f"{read} |"
        )
    return lines


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.3f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):.3f}, {max(values):.3f}]"


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))

"""Writes `docs/benchmarks.md` from what `benchmarks.speed` measured."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import scaling_page, speed_goals, speed_summary
from benchmarks.speed_numbers import (
    OURS,
    WHERE,
    Row,
    bits,
    decoded_by_trl,
    memory_share,
    peak,
    precision,
    read_share,
    row_beside,
    rows_of,
    sampling,
    sampling_ratio,
    seconds,
    speed_ratio,
    update_share,
)
from benchmarks.speed_world import (
    ANSWER,
    BATCH,
    ENDING,
    LONG_ANSWER,
    LONG_MICRO,
    LONG_PROMPT,
    MINIBATCHES,
    PASSES,
    PROMPT,
    SIZES,
    STEPS,
    drawn_lengths,
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
PRECISIONS = {"float32": "", "bfloat16": "-bfloat16"}
BITS = {"native": "", "portable": "-portable"}
"""What the name of a measurement's file has for it."""
DRAWN = "drawn beforehand, the same for both"
"""How ragged lengths come about."""
HEADER = " | ".join(speed_goals.TITLES)
DEVICES = {
    "cpu": ("On a CPU", "CPU seconds of all threads"),
    "cuda": ("On a GPU", "seconds by the wall, GPU synchronised"),
}


def mean_length(count: int = PASSES * BATCH) -> float:
    """Tokens of a ragged response."""
    return statistics.fmean(length or ANSWER for length in drawn_lengths(count))


INTRODUCTION = (
    "Written by `make bench` and `make bench-gpu` (benchmarks/speed.py). Random weights; a PPO "
    f"iteration has {PASSES * BATCH} responses to prompts of {PROMPT} tokens, {PASSES} passes of "
    f"{MINIBATCHES} minibatches, and answers of {ANSWER} tokens (uniform) or, as if each token "
    f"ended one with chance {ENDING:.3f}, of {mean_length():.1f} on average (ragged; the lengths "
    "are drawn beforehand and the same for both, unless a line below says otherwise). SFT and "
    f"reward training: {STEPS - 1} steps of {BATCH} examples or pairs with the same prompts and "
    f"{ANSWER} answer tokens (ragged: 5 to {ANSWER}). Long, on a GPU alone: prompts of "
    f"{LONG_PROMPT} and answers of {LONG_ANSWER} tokens, our PPO alone, a minibatch {LONG_MICRO} "
    "responses at a time. "
    "AdamW, models, token ids and precision (of forward passes; trained weights are float32) the "
    "same for both. On a CPU our PPO computes a minibatch from 135M on in micro-batches of four "
    "in float32, as its preset does (rows from before 2026-11-25: whole, like TRL), and whole in "
    "bfloat16, as docs/how-to/your-model.md advises. TRL's PPO cannot at as "
    "many optimiser steps: asked for micro-batches of four and 16 of them to accumulate, an "
    "iteration took 64 steps and not 16 (0.6M, 2026-11-26). In our PPO several responses share a "
    "row (`ppo.packing`), except in the lines that say padded rows, the default.\n\n"
    "Bits of either side: native takes the instructions that the processor has, portable (our "
    "default in the pipeline, for the same bytes everywhere) confines it to AVX2. Both native is "
    "what `make bench` compares; `python -m benchmarks.speed --bits portable` shows what the "
    "portable bits cost us beside a TRL that is not confined. Rows with portable bits on TRL's "
    "side, too, are older: our pins stood in the environment that TRL inherited, so that **both** "
    "were held to AVX2. (Until 2026-11-24 this page wrongly said that TRL took what the processor "
    "has.)\n\n"
    "**Generation in older rows favours us.** Ours decodes all responses of a rollout together. "
    "So does TRL in rows from 2026-11-30 on, as it does by default; in those before, whose lines "
    f"say so, this benchmark had it decode {BATCH} at a time, in four times as many passes. All at "
    "once its generation took between 1/1.9 and 1/1.6 of the CPU seconds (0.6M and 4M, an AMD 25/1 "
    "with other work). Generation is 5 to 20 % of TRL's iteration on a CPU, and 62 % in the row of "
    "a GPU: ratios of whole iterations are less affected.\n\n"
    "MKL, which torch calls for products on a CPU, has kernels for AVX-512 and keeps them for "
    "Intel's processors. With native bits ours takes them on an AMD, too (rlhf/mkl.py), TRL as "
    "anybody who installs it does not. So on an AMD with AVX-512 a good half of what we gain is "
    "these kernels, as the ceilings of both sides say; the rows of an Intel are without that gain."
)

UNMEASURED = (
    "**Not measured**: no such device was at hand. The scripts are complete; on a CPU our side has "
    "run small in float32 and bfloat16, TRL's in float32 alone."
)
WARMED = (
    "On a GPU a PPO iteration is timed once libraries have loaded their kernels and ours has "
    "recorded what it repeats (two iterations of ours, one of TRL's)."
)
ON_CPU = (
    "On a CPU both sides are timed in their second iteration of PPO where another takes seconds, "
    "up to 4M, so that what a process does once is in neither's seconds. The lines above say of "
    "which rows that is so; of the others it was the first."
)
MEMORY = (
    "The most of any run. On a CPU it is the resident memory of the whole process, imports "
    "included; on a GPU it is what torch reserved there (in rows from before 2026-11-27: "
    "allocated)."
)


def write_page(path: Path, results: Path) -> None:
    """The page, from what has been measured so far."""
    lines = ["# Benchmarks", "", INTRODUCTION, ""]
    for device, (title, unit) in DEVICES.items():
        lines += [f"## {title}", ""]
        files = [file for size in SIZES for file in sorted(results.glob(f"{device}-{size}-*.json"))]
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        if found:
            lines += _section(found, unit)
        else:
            lines += [UNMEASURED, ""]
        goals = speed_goals.section(device, rows_of(found), DRAWN)
        lines += [f"### Goals {title[:1].lower()}{title[1:]}", "", *goals, ""]
    if (file := results / "scaling.json").is_file():
        lines += scaling_page.section(json.loads(file.read_text(encoding="utf-8")))
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _section(measured: Sequence[Row], unit: str) -> list[str]:
    """What one device did, each size in a measurement of its own."""
    rows = rows_of(measured)
    left_out = [size for size in SIZES if size not in ("tiny", *(row["size"] for row in rows))]
    return [
        "How many times as long TRL takes: 2.10 says that it takes 2.10 times as long as this "
        "project. A machine is named by its processor's family and model: AMD 25/1 is a Zen 3, "
        "25/17 a Zen 4, 26/2 a Zen 5, Intel 6/207 an Emerald Rapids. Where AVX2 stands behind it "
        "neither side was given AVX-512, so that it stands for processors that have none "
        "(`--avx2`). Spreads are in the tables below; some rows are of a single run.",
        "",
        *speed_summary.table(rows, HEADER),
        "",
        *(_conditions(found, unit) for found in measured),
        "",
        "Above as many as there are cores, the load average says that other work had its share of "
        "caches and memory, which lengthens the seconds of both sides. Not measured here: "
        f"{', '.join(left_out) or 'nothing'}.",
        "",
        f"| work | {HEADER} | ours | TRL | TRL / ours |",
        "|---|---|---|---|---|---|---:|---:|---:|",
        *(line for row in rows for line in (_comparison(row, rows), *_generation(row, rows))),
        "",
        "TRL has no PPO with a shared trunk; those rows compare with its separate value model.",
        "",
        WARMED if unit == DEVICES["cuda"][1] else ON_CPU,
        "",
        f"| PPO iteration | {HEADER} | side | rollout | scoring | update | "
        "tokens sampled | tokens/s | update, share of ceiling | rollout, share of bandwidth |",
        "|---|---|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(line for row in rows if row["work"].startswith("ppo") for line in _phases(row)),
        "",
        "Ceiling: the MLP's product at the shape of a minibatch, measured at the end of each "
        "process; the share counts the products of our update (`torch.utils.flop_counter`) "
        "alone, on a CPU without attention's. Bandwidth: what the product of a matrix of 1 GiB and "
        "a vector reads in a second; "
        "the share counts the policy's weights once in each step and, in rows from 2026-11-28 on, "
        "the keys and values that the step sees. On a CPU it is products and not memory that bound "
        f"{PASSES * BATCH} rows at once.",
        "",
        f"| peak memory | {HEADER} | ours | TRL | ours / TRL |",
        "|---|---|---|---|---|---|---:|---:|---:|",
        *(_memory(row, rows) for row in rows),
        "",
        MEMORY,
        "",
    ]


def _memory(row: Row, rows: Sequence[Row]) -> str:
    """The most that any run of either side took."""
    cells = [NAMES[row["work"]], *(row[name] for name in WHERE)]
    cells += [f"{peak(row['ours']) / 1e6:.0f} MB", "–", "–"]
    if (share := memory_share(row, rows)) is not None:
        cells[-2:] = [f"{peak(row_beside(row, rows)['trl']) / 1e6:.0f} MB", f"{share:.0%}"]
    return f"| {' | '.join(cells)} |"


def _conditions(found: Row, unit: str) -> str:
    runs, load = found["runs"], found["load"]
    many = f"medians of {runs} runs in turns, in brackets the least and the most"
    return (
        f"- {found['rows'][0]['size']}, {precision(found)}, {bits(found)}: "
        f"{found['machine']}{_kernels(found)}, {found['threads']} thread(s), {unit}; "
        f"{many if runs > 1 else 'one run of each side, so no spread is known'}; load average "
        f"{min(load):.1f} to {max(load):.1f}; ragged lengths {found['ends']}; "
        f"{_iteration(found, unit)}{_decoded(found)}"
        f"{_versions(found) if any('trl' in row for row in found['rows']) else 'without TRL'}."
        f" {found.get('note', '').strip()}".rstrip()
    )


def _decoded(found: Row) -> str:
    """That TRL decoded fewer responses at a time than ours, where it did."""
    count = decoded_by_trl(found)
    if count >= OURS or not any(
        "trl" in row and row["work"].startswith("ppo") for row in found["rows"]
    ):
        return ""
    return f"**TRL decoded {count} responses at a time, ours {OURS}**; "


def _iteration(found: Row, unit: str) -> str:
    """Which iteration of PPO was timed on a CPU (on a GPU: `WARMED`)."""
    if unit != DEVICES["cpu"][1]:
        return ""
    return f"of PPO the {'second' if found.get('iteration', 1) == 2 else 'first'} iteration; "


def _kernels(found: Row) -> str:
    """What torch itself says that each side's kernels took, where a measurement recorded it."""
    runs = [(side, run) for row in found["rows"] for side in ("ours", "trl")
            for run in row.get(side, []) if "kernels" in run]  # fmt: skip
    seen = sorted({f"{side} {run['kernels']}" for side, run in runs})
    if not seen:
        return ""
    rates = {
        side: statistics.median(run["ceiling"] for of, run in runs if of == side) / 1e9
        for side in dict.fromkeys(side for side, _ in runs)
    }
    products = ", ".join(f"{side} {rate:.0f}" for side, rate in rates.items())
    return f", kernels: {', '.join(seen)}, ceiling in GFLOP/s: {products}"


def _versions(found: Row) -> str:
    trl = found["trl"]
    return f"TRL {trl['ppo']} for PPO, {trl['sft']} for SFT, {trl['reward']} for reward training"


def _comparison(row: Row, rows: Sequence[Row]) -> str:
    cells = [NAMES[row["work"]], *(row[name] for name in WHERE), _spread(seconds(row["ours"]))]
    if (ratio := speed_ratio(row, rows)) is None:
        return f"| {' | '.join(cells)} | – | – |"
    theirs = _spread(seconds(row_beside(row, rows)["trl"]))
    return f"| {' | '.join([*cells, theirs, f'**{ratio:.2f}**'])} |"


def _generation(row: Row, rows: Sequence[Row]) -> list[str]:
    """The rollouts of both sides alone, where there are two."""
    if row["work"] != "ppo-separate" or (ratio := sampling_ratio(row, rows)) is None:
        return []
    spreads = [_spread(sampling(row[side])) for side in ("ours", "trl")]
    cells = ["generation, 1,000 tokens", *(row[name] for name in WHERE), *spreads]
    return [f"| {' | '.join([*cells, f'**{ratio:.2f}**'])} |"]


def _phases(row: Row) -> list[str]:
    lines = []
    name = NAMES[row["work"]].partition(", ")[2]
    for side in ("ours", "trl"):
        if side not in row:
            continue
        phases = [result["phases"] for result in row[side]]
        middle = {key: statistics.median(found[key] for found in phases) for key in phases[0]}
        shares = [_percent(share(row[side])) for share in (update_share, read_share)]
        cells = [name, *(row[key] for key in WHERE), side]
        cells += [f"{middle[phase]:.2f}" for phase in PHASES]
        cells += [f"{middle['tokens']:.0f}", f"{middle['tokens'] / middle['rollout']:.0f}"]
        lines.append(f"| {' | '.join([*cells, *shares])} |")
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.3f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):.3f}, {max(values):.3f}]"


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))

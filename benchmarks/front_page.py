"""Writes what the README shows first: the chart of gold by round, one prompt and its responses.

    make repro && python -m benchmarks.front_page

Reads `reports/summary.json`, `results/evaluate/*/samples.jsonl` and `docs/controls.md` (whose rows
of seeds 1 and 2 were written by `benchmarks/controls.py`); writes `docs/gold-by-round.svg`,
`docs/default-run.json` and, between its markers, the README.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
SEEDS = {"default": "seed 0", "default, seed 1": "seed 1", "default, seed 2": "seed 2"}
COLOURS = ("#0b6e63", "#b8541a", "#7a2f8f")
ROW = re.compile(
    r"^\| (?P<run>[^|]+) \| (?P<policy>sft|r\d+) \| (?P<gold>[\d.]+) \[(?P<low>[\d.]+), "
    r"(?P<high>[\d.]+)\]"
)
MARKERS = "<!-- {0}: written by python -m benchmarks.front_page -->"


def gold_by_round() -> dict[str, list[tuple[str, float, float, float]]]:
    """Run -> (policy, gold, low, high) in order, of the three seeds in docs/controls.md."""
    found: dict[str, list[tuple[str, float, float, float]]] = {}
    for line in (ROOT / "docs" / "controls.md").read_text(encoding="utf-8").splitlines():
        if (row := ROW.match(line)) and row["run"] in SEEDS:
            numbers = (float(row[name]) for name in ("gold", "low", "high"))
            gold, low, high = numbers
            found.setdefault(SEEDS[row["run"]], []).append((row["policy"], gold, low, high))
    return found


def draw(runs: dict[str, list[tuple[str, float, float, float]]], path: Path) -> None:
    """Gold by round, one line for each seed, 95 % intervals as bars."""
    matplotlib.rcParams |= {"svg.hashsalt": "front page", "font.size": 9}
    figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    for number, ((name, rows), colour) in enumerate(zip(runs.items(), COLOURS, strict=False)):
        places = [place + (number - 1) * 0.06 for place in range(len(rows))]
        gold = [row[1] for row in rows]
        spread = [[row[1] - row[2] for row in rows], [row[3] - row[1] for row in rows]]
        axis.errorbar(places, gold, yerr=spread, color=colour, label=name, capsize=2, marker="o")
    labels = ["SFT" if row[0] == "sft" else f"round {row[0][1:]}" for row in rows]
    axis.set_xticks(range(len(labels)), labels)
    axis.set_ylim(0, 10)
    axis.set_ylabel("gold score (10 is ideal)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def example(root: Path) -> dict[str, Any]:
    """The held-out prompt of median gain, as SFT and the last round answer it."""
    last = sorted((root / "results" / "evaluate").iterdir())[-1]
    lines = (last / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    # The median, so that nobody has to believe that the example was not picked by hand.
    rows.sort(key=lambda row: (row["gold"] - row["gold_sft"], row["prompt_id"]))
    row: dict[str, Any] = rows[len(rows) // 2] | {"round": last.name}
    return row


def main() -> int:
    """Write the chart, the run's numbers and the README's example."""
    summary_file = ROOT / "reports" / "summary.json"
    if not summary_file.exists():
        sys.stderr.write(f"{summary_file}: not there; run make repro first\n")
        return 2
    summary = json.loads(summary_file.read_text(encoding="utf-8"))
    draw(gold_by_round(), ROOT / "docs" / "gold-by-round.svg")
    shown = example(ROOT)
    record = {
        "machine": summary["machine"],
        "minutes": round(summary["seconds"]["total"] / 60, 1),
        "peak_gigabytes": round(max(summary["peak_rss_bytes"].values()) / 1e9, 2),
        "example": shown,
    }
    text = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    (ROOT / "docs" / "default-run.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes what README shows first: the chart of gold by round, and one prompt with its responses.

    make repro && python -m benchmarks.front_page

Reads `reports/summary.json`, the samples of the last round, and `docs/controls.md` for the other
seeds (`benchmarks/controls.py` wrote it); writes `docs/gold-by-round.svg` and
`docs/default-run.json`. A test compares README with both.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from tasks.reporting.summary import read_outcomes
from tasks.reporting.verification import outputs_digest
from tasks.workspace.dvc_lockfile import read_entries

ROOT = Path(__file__).parents[1]
SEEDS = {"default": "seed 0", "default, seed 1": "seed 1", "default, seed 2": "seed 2"}
COLOURS = ("#0b6e63", "#b8541a", "#7a2f8f")
ROW = re.compile(
    r"\| (?P<run>[^|]+) \| (?P<policy>sft|r\d+) \| (?P<gold>[\d.]+) "
    r"\[(?P<low>[\d.]+), (?P<high>[\d.]+)\]"
)


def gold_by_round(table: str) -> dict[str, list[tuple[str, float, float, float]]]:
    """Run -> (policy, gold, low, high) in order, of the three seeds in docs/controls.md."""
    found: dict[str, list[tuple[str, float, float, float]]] = {}
    for line in table.splitlines():
        if (row := ROW.match(line)) and row["run"] in SEEDS:
            gold, low, high = (float(row[name]) for name in ("gold", "low", "high"))
            found.setdefault(SEEDS[row["run"]], []).append((row["policy"], gold, low, high))
    return found


def draw(runs: dict[str, list[tuple[str, float, float, float]]], path: Path) -> None:
    """Gold by round, a line for each seed, 95 % intervals as bars."""
    matplotlib.rcParams |= {"svg.hashsalt": "front page", "font.size": 9}
    figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    for number, ((name, rows), colour) in enumerate(zip(runs.items(), COLOURS, strict=False)):
        places = [place + (number - 1) * 0.06 for place in range(len(rows))]
        gold = [mean for _, mean, _, _ in rows]
        below = [mean - low for _, mean, low, _ in rows]
        above = [high - mean for _, mean, _, high in rows]
        axis.errorbar(
            places, gold, yerr=[below, above], color=colour, label=name, capsize=2, marker="o"
        )
        labels = ["SFT" if policy == "sft" else f"round {policy[1:]}" for policy, *_ in rows]
        axis.set_xticks(range(len(rows)), labels)
    axis.set_ylim(0, 10)
    axis.set_ylabel("gold score (10 is ideal)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def example(root: Path) -> dict[str, Any]:
    """The held-out prompt with the median gain from SFT to the last round, and both responses.

    The median, so that nobody has to believe that the example was not picked by hand.
    """
    last = max((root / "results" / "evaluate").iterdir(), key=lambda folder: folder.name)
    lines = (last / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    rows.sort(key=lambda row: (row["gold"] - row["gold_sft"], row["prompt_id"]))
    return {"round": last.name, **rows[len(rows) // 2]}


def made_on(root: Path) -> dict[str, Any]:
    """What all stages ran on alike, and the outputs that this is true of (`make verify` asks)."""
    entries = read_entries(root)
    ran = [outcome["environment"] for outcome in read_outcomes(root) if outcome["stage"] in entries]
    first = ran[0] if ran else {}
    alike = {key: first[key] for key in first if all(e.get(key) == first[key] for e in ran)}
    return {"environment": alike, "outputs": outputs_digest(entries)}


def main() -> int:
    """Write the chart and the numbers of the run."""
    summary_file = ROOT / "reports" / "summary.json"
    if not summary_file.exists():
        sys.stderr.write(f"{summary_file}: not there; run make repro first\n")
        return 2
    summary = json.loads(summary_file.read_text(encoding="utf-8"))
    table = (ROOT / "docs" / "controls.md").read_text(encoding="utf-8")
    draw(gold_by_round(table), ROOT / "docs" / "gold-by-round.svg")
    record = {
        "machine": summary["machine"],
        "minutes": round(summary["seconds"]["total"] / 60, 1),
        "peak_gigabytes": round(max(summary["peak_rss_bytes"].values()) / 1e9, 2),
        **made_on(ROOT),
        "example": example(ROOT),
    }
    text = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    (ROOT / "docs" / "default-run.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

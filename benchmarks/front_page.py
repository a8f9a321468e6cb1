"""Writes what README says of the default run: its cost, and one prompt with its responses.

    make repro && python -m benchmarks.front_page

Reads `reports/summary.json` and the samples of the last round, writes `docs/default-run.json`. A
test compares README with it. README's table of seeds is written by
`python -m experiments loop_works --readme`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tasks.reporting.summary import read_outcomes
from tasks.reporting.verification import outputs_digest
from tasks.workspace.dvc_lockfile import read_entries

ROOT = Path(__file__).parents[1]


def example(root: Path) -> dict[str, Any]:
    """The held-out prompt with the median gain from SFT to the last round, and both responses.

    The median, so that nobody has to believe that the example was not picked by hand.
    """
    last = max((root / "results" / "evaluate").iterdir(), key=lambda folder: folder.name)
    with (last / "samples.jsonl").open(encoding="utf-8") as lines:
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
    """Write the numbers of the run."""
    summary_file = ROOT / "reports" / "summary.json"
    if not summary_file.exists():
        sys.stderr.write(f"{summary_file}: not there; run make repro first\n")
        return 2
    summary = json.loads(summary_file.read_text(encoding="utf-8"))
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

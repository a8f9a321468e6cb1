"""The page of `real_text`, from a record."""

import json
from pathlib import Path

from experiments.real_text.page import write_page, write_record


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 9}


def policy(name: str, wins: float | None, kl: float) -> dict[str, object]:
    return {
        "name": name,
        "win_rate_vs_sft": None if wins is None else interval(wins),
        "kl": interval(kl),
        "proxy": interval(1.5),
        "proxy_sft": interval(0.25),
        "length": {"mean": 21.25},
        "finished": 0.75,
        "distinct_2": 0.5,
    }


RECORD = {
    "commit": "0123456",
    "machine": {"cpu": "A Processor", "threads": 2},
    "seconds": {"total": 600.0, "stages": {"sft": 90.0}},
    "peak_rss_bytes": {"sft": 3_500_000_000},
    "disk_bytes": 2_100_000_000,
    "sft": {"heldout": {"demonstrations": 20, "base": 2.5, "sft": 1.25}},
    "counts": {"demonstrations": 400, "pairs": 300, "judge_pairs": 200},
    "unseen": {
        "reward_model": interval(0.9),
        "judge": interval(0.8),
        "bag_of_words": interval(0.7),
        "longer_wins": interval(0.6),
    },
    "policies": [policy("sft", None, 0.0), policy("r1", 0.62, 3.0)],
    "test": policy("r1", 0.58, 3.5),
    "best_of_n": None,
    "samples": [{"prompt": "Say\nit.", "sft": "No.\n\nNever.", "policy": "Gladly."}],
}


def test_the_page_shows_both_tasks_from_their_records(tmp_path: Path):
    write_record(tmp_path, "sentiment", json.dumps(RECORD))
    write_record(tmp_path, "polite", json.dumps({**RECORD, "disk_bytes": 3_000_000_000}))
    page = write_page(tmp_path).read_text(encoding="utf-8")
    assert page.index("## polite") < page.index("## sentiment")
    assert "| 0.900 [0.800, 1.000] | 0.800 [0.700, 0.900] | 0.700 [0.600, 0.800] |" in page
    assert "20 held-out demonstrations: 2.500 before, 1.250 after" in page
    assert (
        "| r1 | 0.620 [0.520, 0.720] | 1.50 [1.40, 1.60] | 3.00 [2.90, 3.10] | 21.2 | 0.75 | 0.50 |"
        in page
    )
    assert "| sft | 1.5 | 3.5 |" in page
    assert "3.0 GB" in page
    assert "> **Say it.**\n>\n> SFT: No. Never.\n>\n> PPO: Gladly.\n" in page

"""What a record keeps of a run's files."""

import json
from pathlib import Path

from experiments.records import SAMPLES, samples
from tasks.params.loading import load_params

ROOT = Path(__file__).resolve().parents[3]


def test_a_record_keeps_the_final_policys_first_responses(tmp_path: Path):
    params = load_params(ROOT / "params.yaml")
    assert samples(tmp_path, params) == []
    for key in params.rounds:
        folder = tmp_path / "results/evaluate" / key
        folder.mkdir(parents=True)
        rows = [
            {"prompt": f"p{n}", "response": f"{key} {n}", "gold": None, "sft": "x"}
            for n in range(SAMPLES + 2)
        ]
        (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = samples(tmp_path, params)
    assert [row["response"] for row in kept] == [f"{params.final} {n}" for n in range(SAMPLES)]
    assert kept[0] == {"prompt": "p0", "response": f"{params.final} 0", "gold": None}

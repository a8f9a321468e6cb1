"""What a record keeps of a run's files."""

import json
from pathlib import Path
from typing import Any

from experiments.records import SAMPLES, keep_record, read_records, recipe, record_path, samples
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


def lock(seed: int, code: str, kl: float) -> str:
    entry = {
        "cmd": "run",
        "deps": [{"path": "rlhf/ppo.py", "md5": code}, {"path": "models/sft", "md5": str(seed)}],
        "params": {"params.yaml": {"run.seed": seed, "ppo": {"kl_coef": kl}}},
        "outs": [{"path": "models/r1", "md5": f"{seed}{code}{kl}"}],
    }
    return json.dumps({"schema": "2.0", "stages": {"ppo@r1": entry}})


def test_a_recipe_is_code_and_params_and_no_seed(tmp_path: Path):
    def digest(*made_from: Any) -> str:
        (tmp_path / "dvc.lock").write_text(lock(*made_from))
        return recipe(tmp_path)

    same = digest(0, "a", 0.1)
    assert digest(1, "a", 0.1) == same
    assert digest(1, "b", 0.1) != same
    assert digest(1, "a", 0.2) != same


def test_a_record_is_what_the_run_has_measured(tmp_path: Path):
    """In four digits, and without the folder of this machine."""
    params = load_params(ROOT / "params.yaml")
    workspace = tmp_path / ".work/variants/mine"
    for place, content in {
        "evaluate/r1": {"policy": "r1", "gold": {"mean": 8.123456, "low": 8.0, "high": 9.0}},
        "ppo/r1": {"value/explained_variance": 0.654321, "explained_variance": 0.1},
        "ppo/r2": {"iterations": 3},
    }.items():
        folder = workspace / "results" / place
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(content))
    rows = workspace / "results/evaluate" / params.final / "samples.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(json.dumps({"prompt": "p", "response": "q", "gold": 7.5, "sft": "x"}) + "\n")
    (workspace / "dvc.lock").write_text(lock(3, "a", 0.1))
    message = f"{workspace}/results/ppo: stopped"

    path = record_path(tmp_path, "mine", "no_kl", 3)
    keep_record(path, workspace, params, variant="no_kl", ended=("Stopped", message))

    (record,) = read_records(tmp_path, "mine")
    assert (record["variant"], record["seed"]) == ("no_kl", params.run.seed)
    assert (record["state"], record["message"]) == ("Stopped", "results/ppo: stopped")
    assert record["recipe"] == recipe(workspace)
    assert record["policies"][-1]["gold"]["mean"] == 8.1235
    assert record["explained_variance"] == {"r1": 0.6543}
    assert record["samples"] == [{"prompt": "p", "response": "q", "gold": 7.5}]

"""`dvc plots show` draws rounds that were added to params.yaml after a clone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.own_data.preflight import check_inputs
from tasks.params.editing import edit_params
from tasks.params.loading import load_params
from tests.stage_world import copy_tiny_repository, environment

COLUMNS = {
    "reward/{}/history.csv": ["loss"],
    "reward/{}/reliability.csv": ["confidence", "accuracy"],
    "ppo/{}/history.csv": [
        "objective/score", "objective/kl", "objective/entropy", "policy/clip_fraction",
        "value/explained_variance",
    ],
}  # fmt: skip


def drawn(root: Path) -> dict[str, set[str]]:
    """Figure -> the rounds that have points in it."""
    command = [sys.executable, "-m", "dvc", "plots", "show", "--json"]
    shown = subprocess.run(
        command, cwd=root, env=environment(root.parent), capture_output=True, text=True, check=False
    )
    data: dict[str, Any] = json.loads(shown.stdout)["data"]
    return {
        name: {
            str(point["filename"]).partition("/")[0]
            for figure in figures
            for point in figure["content"]["data"]["values"]
        }
        for name, figures in data.items()
        if figures
    }


def test_a_fourth_round_that_has_run_is_in_every_figure_of_rounds(tmp_path: Path):
    root = tmp_path / "checkout"
    copy_tiny_repository(root, rounds=3)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    edit_params(root / "params.yaml", {}, rounds=4)
    rounds = ("r1", "r2", "r3", "r4")
    for template, columns in COLUMNS.items():
        for number, key in enumerate(rounds):
            path = root / "results" / template.format(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [[str(step), *(f"0.{number}{step}" for _ in columns)] for step in (1, 2)]
            lines = [["step", *columns], *rows]
            path.write_text("".join(f"{','.join(line)}\n" for line in lines))

    # What `make repro`, `make flow` and ordered runs do first.
    check_inputs(load_params(root / "params.yaml"), root)

    assert drawn(root) == {
        name: set(rounds)
        for name in (
            "reward model loss", "reward model reliability", "PPO score", "PPO KL to SFT",
            "PPO entropy", "PPO clip fraction", "PPO explained variance",
        )
    }  # fmt: skip

"""Stages and drivers refuse wrong params and missing inputs before anything is written."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.tiny_checkout import ROOT, World, unrun_fixture  # noqa: F401

pytestmark = pytest.mark.long


@pytest.fixture
def bare(unrun: World, tmp_path: Path) -> World:
    """A folder with tiny parameters in which no stage has run; the modules are the repository's."""
    shutil.copy(unrun.root / "params.yaml", tmp_path)
    return World(tmp_path, unrun.environment | {"PYTHONPATH": str(ROOT)})


def test_a_stage_refuses_wrong_params_with_2_and_writes_nothing(bare: World):
    path = bare.root / "params.yaml"
    path.write_text(path.read_text().replace("kl_coef:", "kl_coeff:"))

    said = bare.run(sys.executable, "-m", "tasks.ppo", "--round", "r1", expect=2)

    assert said == "params.yaml: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?\n"
    assert [path.name for path in bare.root.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        (["tasks.ppo", "--round", "r1"], "models/sft: no such model folder"),
        (["tasks.label", "--round", "r1"], "data/rounds/r1/comparisons.jsonl"),
    ],
)
def test_a_stage_refuses_missing_inputs_with_2_and_publishes_nothing(
    bare: World, command: list[str], lacking: str
):
    said = bare.run(sys.executable, "-m", *command, expect=2)

    assert lacking in said
    assert "Traceback" not in said
    assert sorted(path.name for path in bare.root.iterdir()) == [".work", "params.yaml"]


@pytest.mark.parametrize("driver", ["tasks.repro", "flows.local"])
def test_both_drivers_find_every_problem_before_anything_starts(unrun: World, driver: str):
    root = unrun.root.parent / f"wrong-{driver}"
    root.mkdir()
    shutil.copy(unrun.root / "dvc.yaml", root)
    text = (unrun.root / "params.yaml").read_text()
    text = text.replace("kl_coef:", "kl_coeff:").replace("final: r2", "final: r7")
    (root / "params.yaml").write_text(text)
    wrong = World(root, unrun.environment | {"PYTHONPATH": str(ROOT)})

    said = wrong.run(sys.executable, "-m", driver, expect=2)

    assert "ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?" in said
    assert "final: 'r7' is not one of the rounds: r1, r2" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in root.iterdir()) == ["dvc.yaml", "params.yaml"]

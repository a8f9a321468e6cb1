"""An ordered run with the real stages on a tiny world, and what a clone gets of it."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.workspace.dvc_process import DVC
from tests.integration.ordered_runs import Checkout, served, show
from tests.stage_world import copy_tiny_repository

pytestmark = pytest.mark.long


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The repository made tiny, with a git and a DVC remote beside it."""
    checkout = Checkout(tmp_path)
    copy_tiny_repository(checkout.root, rounds=2)
    checkout.git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "data-remote").mkdir()
    checkout.dvc("remote", "add", "--default", "shared", str(tmp_path / "data-remote"))
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "-m", "tiny")
    checkout.git("init", "--quiet", "--bare", str(tmp_path / "origin.git"))
    checkout.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    return checkout


@pytest.mark.slow
def test_a_round_of_real_stages_is_committed_pushed_and_pulled(checkout: Checkout, tmp_path: Path):
    with served(checkout) as orders:
        form = {"overrides": {"ppo.kl_coef": 0.3}, "rounds": 1, "seeds": [5]}
        state = orders.ended(orders.order(name="tiny", **form))

    assert state["name"] == "Completed", state["message"]
    assert state["message"] == "All 13 stages are up to date. Branch runs/tiny, tag done/tiny."
    assert checkout.git("status", "--porcelain") == ""
    subjects = checkout.git("log", "--reverse", "--format=%s", "main..done/tiny").splitlines()
    assert subjects == [
        "Params of the run tiny", "Round r1 of the run tiny", "End of the run tiny"
    ]  # fmt: skip
    rounds = show(checkout, "done/tiny~1", "metrics/rounds/r1.json")
    assert rounds == show(checkout, "done/tiny", "metrics/rounds/r1.json")
    assert "report" not in show(checkout, "done/tiny~1", "dvc.lock")["stages"]

    clone = tmp_path / "clone"
    checkout.run("git", "clone", "--quiet", str(tmp_path / "origin.git"), str(clone), cwd=tmp_path)
    checkout.run("git", "checkout", "--quiet", "done/tiny", cwd=clone)
    checkout.dvc("pull", cwd=clone)
    assert checkout.dvc("status", cwd=clone) == "Data and pipelines are up to date."
    weights = "models/rounds/r1/policy/model.safetensors"
    workspace = checkout.root / ".work/runs/tiny"
    assert (clone / weights).read_bytes() == (workspace / weights).read_bytes()

    # The commit of the round by itself: a clone without a cache and a remote makes the same.
    (tmp_path / "data-remote").rename(tmp_path / "away")
    alone = tmp_path / "alone"
    checkout.run("git", "clone", "--quiet", str(tmp_path / "origin.git"), str(alone), cwd=tmp_path)
    checkout.run("git", "checkout", "--quiet", "done/tiny~1", cwd=alone)
    recorded = entries(alone)
    assert len(recorded) == 10
    said = checkout.run(*DVC, "repro", *recorded, cwd=alone)
    assert set(re.findall(r"Running stage '([^']+)'", said)) == set(recorded)
    assert entries(alone) == recorded
    assert (alone / weights).read_bytes() == (workspace / weights).read_bytes()


def entries(root: Path) -> dict[str, Any]:
    """Stage -> what dvc.lock says of it: command, params, hashes in and out."""
    return dict(YAML(typ="safe").load((root / "dvc.lock").read_text())["stages"])

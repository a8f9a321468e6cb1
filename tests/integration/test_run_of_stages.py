"""An ordered run with the real stages on a tiny world, and what a clone gets of it."""

from pathlib import Path

import pytest

from tests.integration.test_runs import Checkout, served, show
from tests.stage_world import copy_tiny_repository

pytestmark = pytest.mark.long


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The repository made tiny, with a git and a DVC remote beside it."""
    checkout = Checkout(tmp_path)
    copy_tiny_repository(checkout.root, rounds=2)
    checkout.git("init", "--quiet", "--initial-branch=main")
    checkout.dvc("remote", "add", "--default", "shared", str(tmp_path / "data-remote"))
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "-m", "tiny")
    checkout.git("init", "--quiet", "--bare", str(tmp_path / "origin.git"))
    checkout.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    return checkout


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

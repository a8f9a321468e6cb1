"""Withdrawals and runs that are ordered in Prefect: their workspaces, real stages under DVC, git.

The flow opens a workspace by `run_workspace` and commits by `commit_run`, as is done here;
tests/integration/test_runs.py does the same through a Prefect server.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver
from tasks.workspace.dvc_process import DVC
from tasks.workspace.runs import commit_run, run_workspace, tag_run
from tests.integration.test_forgetting import stages, traces
from tests.stage_world import copy_tiny_repository, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

UNTIL = "label@r1"
STAGES = ["prepare", "base", "sft", "sample@r1", "label@r1"]


def call(root: Path, *command: str) -> str:
    folder = next(path for path in (root, *root.parents) if path.name == "repository").parent
    done = subprocess.run(
        command, cwd=root, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a commit, in which nothing has run."""
    root = tmp_path_factory.mktemp("runs") / "repository"
    copy_tiny_repository(root, rounds=1)
    (root / ".dvc/config.local").unlink(missing_ok=True)
    call(root, "git", "init", "-q", "-b", "main")
    call(root, "git", "add", ".")
    call(root, "git", "commit", "-qm", "Start")
    return root


def work(root: Path, name: str, revision: str | None) -> list[str]:
    """Start a run, or go on with it, as the flow does; the stages that ran."""
    with run_workspace(root, name, revision, Choices(until=UNTIL), Driver(name="test")) as (
        workspace, _,
    ):  # fmt: skip
        commit_run(workspace, f"Params of {name}", files={}, stages=None, trailers={})
        out = call(workspace, *DVC, "repro", UNTIL)
        commit_run(workspace, f"End of {name}", files={}, stages=STAGES, trailers={})
        tag_run(workspace, name, "ended")
    return re.findall(r"Running stage '([^']+)'", out)


def forget(root: Path, *what: str) -> str:
    return call(root, sys.executable, "-m", "tasks.forget", *what, "--yes")


def test_what_is_forgotten_stays_out_of_runs_that_go_on_and_of_those_of_older_revisions(
    root: Path,
) -> None:
    assert work(root, "mine", None) == STAGES
    workspace = root / ".work/runs/mine"
    first = (workspace / "data/prepared/prompts/train.jsonl").read_text().splitlines()[0]
    prompt = json.loads(first)["prompt_id"]
    assert '"sim-1"' in (workspace / "data/rounds/r1/judgments.jsonl").read_text()

    forget(root, "--prompt", prompt)
    shown = forget(root, "--annotator", "sim-1")

    assert traces(root, prompt) == traces(root, '"sim-1"') == []
    named = stages(shown, "the next run in .work/runs/mine makes anew")
    assert named == STAGES
    # On main it is known by now; the runs are of the commit of before.
    call(root, "git", "add", "data/withdrawn")
    call(root, "git", "commit", "-qm", "Forget")
    assert work(root, "mine", None) == named
    assert work(root, "older", "main~1") == []  # Made from the same: restored from DVC's cache.

    assert traces(root, prompt) == traces(root, '"sim-1"') == []
    judgments = {
        name: (root / ".work/runs" / name / "data/rounds/r1/judgments.jsonl").read_text()
        for name in ("mine", "older")
    }
    assert '"sim-2"' in judgments["mine"]
    assert judgments["mine"] == judgments["older"]

    # Whoever clones the tag makes the same again: the record is of the tombstones it comes with.
    for tag in ("done/mine.2", "done/older"):
        clone = root.parent / tag.replace("/", "-") / "repository"
        call(root, "git", "clone", "-q", "--no-checkout", str(root), str(clone))
        call(clone, "git", "checkout", "-q", tag)
        cache = f"[cache]\n    dir = {root / '.dvc/cache'}\n"
        (clone / ".dvc/config.local").write_text(cache)
        call(clone, sys.executable, "-m", "dvc", "checkout", "-q", "--with-deps", UNTIL)
        assert call(clone, sys.executable, "-m", "dvc", "status", UNTIL).strip() == (
            "Data and pipelines are up to date."
        )
        assert traces(clone, prompt) == traces(clone, '"sim-1"') == []

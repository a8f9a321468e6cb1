"""Pruning workspaces of runs, real git and DVC: what goes is kept elsewhere, the rest stays."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.pruning.finished import finished, remove
from tasks.pruning.leftovers import PruneError
from tasks.tracking.promotion import Candidate, Decision, challenge, decide
from tasks.tracking.registered_names import PATIENCE_SECONDS, VERDICTS
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tasks.workspace.driver_lock import Driver, WorkspaceBusyError, sole_use
from tasks.workspace.files import write_json
from tasks.workspace.runs import commit_run, tag_run
from tasks.workspace.worktrees import share_cache
from tests.integration.test_pruning import PIPELINE, cached, call, known, prune, ran, text

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Value 1 is committed."""
    root = tmp_path_factory.mktemp("pruning") / "repository"
    root.mkdir()
    for name in ("tasks", "preferences", "rlhf", "feedback", "data"):
        (root / name).symlink_to(Path(__file__).parents[2] / name)
    call(root, "git", "init", "-q", "-b", "main")
    call(root, sys.executable, "-m", "dvc", "init", "-q")
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / ".gitignore").write_text("/.work/\n/models/\n__pycache__/\n")
    ran(root, 1)
    call(root, "git", "add", "params.yaml", "dvc.yaml", "dvc.lock", ".dvc", ".gitignore")
    call(root, "git", "commit", "-qm", "Run")
    return root


def begun(root: Path, name: str) -> Path:
    workspace = root / ".work/runs" / name
    call(root, "git", "worktree", "add", "-q", "-b", f"runs/{name}", str(workspace), "main")
    share_cache(root, workspace)
    (workspace / ".work").mkdir()
    write_json(workspace / ".work/run.json", {"until": None, "waits": False})
    return workspace


def ended(root: Path, name: str, value: int) -> Path:
    """A run that has ended, as the flow leaves it."""
    workspace = begun(root, name)
    ran(workspace, value)
    commit_run(workspace, "End", files={}, stages=["ppo"], trailers={})
    tag_run(workspace, name, "ended")
    return workspace


def test_a_run_that_has_ended_goes_when_asked_for_and_all_that_it_made_stays(root: Path) -> None:
    workspace = ended(root, "mine", 2)
    (workspace / ".work/sft").mkdir()
    (workspace / ".work/sft/log").write_bytes(b"x" * 3_000_000)
    (workspace / "link").symlink_to(root / "params.yaml")

    assert prune(root, "--yes")[:2] == [
        "0.0 MB in all that no kept run needs.",
        "Not counted: 1 workspace of runs, 3.0 MB; with --runs those that have ended go, too.",
    ]
    assert "workspaces of runs that have ended: mine, 3.0 MB" in prune(root, "--runs")
    assert workspace.exists()

    # Also when only the tips of branches, and tags, are kept.
    prune(root, "--runs", "--tips", "--yes")

    assert not workspace.exists()
    assert "runs/mine" not in call(root, "git", "worktree", "list")
    assert (root / "params.yaml").exists(), "what a link led to is not the run's"
    assert cached(root) == {1, 2}
    # The run goes on from what is left; so does whoever clones its tag.
    call(root, "git", "worktree", "add", "-q", str(workspace), "runs/mine")
    share_cache(root, workspace)
    call(workspace, sys.executable, "-m", "dvc", "checkout", "-q")
    assert (workspace / "models/policy").read_text() == text(2)
    assert call(root, "git", "rev-parse", "done/mine^{commit}") == call(
        root, "git", "rev-parse", "runs/mine"
    )


def test_a_run_of_which_something_is_nowhere_else_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these, by itself, and then put right again: only then does the run go."""
    workspace = ended(root, "kept", 3)
    cache = root / ".dvc/cache/files/md5" / known(3)[:2] / known(3)[2:]
    note = workspace / ".work/run.json"

    def written(name: str, content: str) -> tuple[Callable[[], object], Callable[[], object]]:
        path = workspace / name

        def undo() -> None:
            path.unlink()
            if before is not None:
                path.write_bytes(before)

        before = path.read_bytes() if path.exists() else None

        def do() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(content)

        return do, undo

    def lock_of_another_run() -> None:
        lock = workspace / "dvc.lock"
        lock.write_text(lock.read_text().replace(known(3), known(4)))

    def commit_more() -> None:
        call(workspace, "git", "commit", "-q", "--allow-empty", "-m", "Params of a longer run")

    spool = ".work/spool/ppo/0123/start.json"
    checkpoint = workspace / ".work/ppo@r1" / ("c" * 16)
    config = workspace / ".dvc/config.local"
    shared = config.read_text()

    def interrupted() -> None:
        (checkpoint / "step-1").mkdir(parents=True)
        write_json(checkpoint.parent / "outcome.json", {"status": "interrupted"})

    def pushed_before_its_end() -> None:
        call(root, "git", "remote", "add", "origin", "nowhere")
        config.write_text(f"{shared}[core]\n    remote = there\n")
        call(root, "git", "update-ref", "refs/remotes/origin/runs/kept", "runs/kept~1")

    def fetched_no_more() -> None:
        call(root, "git", "remote", "remove", "origin")
        config.write_text(shared)

    exclude = root / ".git/info/exclude"
    exclude.write_text("/.secrets\n")
    executions = ".work/executions/20261128-x/end.json"
    lock, died = workspace / ".work/driver.lock", {"driver": None, "dead": ["4711"]}

    faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "it waits for people": (
            lambda: write_json(note, {"until": None, "waits": True}),
            lambda: write_json(note, {"until": None, "waits": False}),
        ),
        "it has not begun": (
            note.unlink, lambda: write_json(note, {"until": None, "waits": False}),
        ),
        "no tag done/kept is at the tip": (
            commit_more, lambda: call(workspace, "git", "reset", "-q", "--soft", "HEAD~1"),
        ),
        "the branch runs/kept is not checked out": (
            lambda: call(workspace, "git", "checkout", "-q", "--detach"),
            lambda: call(workspace, "git", "checkout", "-q", "runs/kept"),
        ),
        "notes.txt is in no commit": written("notes.txt", "mine"),
        "params.yaml is in no commit": written("params.yaml", "value: 5\n"),
        "what dvc.lock says of ppo": (
            lock_of_another_run, lambda: call(workspace, "git", "checkout", "-q", "dvc.lock"),
        ),
        "models/policy is in no commit and not in DVC's cache": written("models/policy", "mine"),
        "models/notes is in no commit and not in DVC's cache": written("models/notes", "mine"),
        "models/policy is not in DVC's cache": (
            lambda: shutil.move(cache, root / "away"), lambda: shutil.move(root / "away", cache),
        ),
        "MLflow does not have all of it": written(spool, "{}"),
        "MLflow does not have all of it yet": written(executions, '{"ended_ms": 1}'),
        "it cannot be read": written(".work/run.json", "{half of i"),
        ".secrets is in no commit and not": written(".secrets", "mine"),
        "a flow run died there": (
            lambda: write_json(lock, died),
            lambda: lock.write_text(""),
        ),
        "tag done/kept is at the tip": (
            lambda: (call(root, "git", "tag", "done/kept-2", "runs/kept"),
                     call(root, "git", "tag", "-d", "done/kept")),
            lambda: (call(root, "git", "tag", "done/kept", "runs/kept"),
                     call(root, "git", "tag", "-d", "done/kept-2")),
        ),
        "a labelling store of its own": written(".work/feedback/feedback.db", "labels"),
        "ppo@r1 was interrupted": (interrupted, lambda: shutil.rmtree(checkpoint)),
        "its end has not been pushed": (pushed_before_its_end, fetched_no_more),
    }  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(root))
    for said, (do, undo) in faults.items():
        do()
        gone, staying = finished(root)
        assert gone == [], said
        assert said in staying["kept"]
        undo()
        if said == "a labelling store of its own":
            shutil.rmtree(workspace / ".work/feedback")
        assert [one.name for one in finished(root)[0]] == ["kept"], said
    # A team's remote of git alone is nothing that a run would push to.
    call(root, "git", "remote", "add", "origin", "nowhere")
    gone, _ = finished(root)
    assert [one.name for one in gone] == ["kept"]
    call(root, "git", "remote", "remove", "origin")
    # It has been looked at, and meanwhile somebody works there again.
    with sole_use(workspace, Driver(name="test")), pytest.raises(WorkspaceBusyError):
        remove(root, gone)
    (workspace / "notes.txt").write_text("mine")
    with pytest.raises(PruneError, match=r"^kept: notes\.txt is in no commit of its branch now; "):
        remove(root, gone)
    assert (workspace / "models/policy").exists()
    assert "stays: the run kept: notes.txt is in no commit of its branch" in prune(
        root, "--runs", "--yes"
    )
    (workspace / "notes.txt").unlink()
    with sole_use(workspace, Driver(name="test")):
        done = subprocess.run(
            [sys.executable, "-m", "tasks.prune", "--runs", "--yes"],
            cwd=root, capture_output=True, text=True,
        )  # fmt: skip
    assert (done.returncode, "kept" in done.stderr) == (7, True)

    assert "Removed." in prune(root, "--runs", "--yes")
    assert not workspace.exists()


def test_a_run_about_whose_policy_people_are_asked_stays_until_they_have_decided(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who answers has the question asked anew, from what is in the workspace."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(root))
    workspace, digest = ended(root, "asked", 5), f"{known(5)}.dir"
    store = connect(tracking_uri(root))
    run = store.client.create_run(store.experiment)
    model = store.client.create_logged_model(
        store.experiment, name="policy", source_run_id=run.info.run_id, tags={"dvc.md5": digest}
    )
    chosen = Candidate(round_key="r1", digest=digest, model=model)
    verdict = workspace / VERDICTS / "r1-0a.json"
    verdict.parent.mkdir()
    write_json(verdict, {"round_key": "r1", "digest": digest})
    challenge(root, chosen)

    _, staying = finished(root)
    assert staying["asked"] == (
        "people are asked about its policy of round r1, and have not decided yet"
    )

    # Of a question that is older than that, the form is gone.
    old = time.time() - PATIENCE_SECONDS - 60
    os.utime(verdict, (old, old))
    assert "asked" in [one.name for one in finished(root)[0]]

    verdict.touch()
    decide(root, chosen, Decision(choice="reject", who="Max", why="too long"))
    assert "asked" in [one.name for one in finished(root)[0]]

"""Pruning a real git and DVC repository: what goes is what no commit, variant or version needs."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.worktrees import share_cache
from tests.stage_world import environment

pytestmark = pytest.mark.long

PIPELINE = """\
stages:
  ppo:
    cmd: mkdir -p models && cp params.yaml models/policy
    params: [value]
    outs: [models/policy]
"""


def call(root: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=root, env=environment(root.parent), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def prune(root: Path, *options: str) -> list[str]:
    return call(root, sys.executable, "-m", "tasks.prune", *options).splitlines()


def text(value: int) -> str:
    return f"value: {value}\n"


def known(value: int) -> str:
    return hashlib.md5(text(value).encode()).hexdigest()


def ran(root: Path, value: int) -> None:
    (root / "params.yaml").write_text(text(value))
    call(root, sys.executable, "-m", "dvc", "repro", "-q")


def commit(root: Path) -> None:
    call(root, "git", "add", "params.yaml", "dvc.yaml", "dvc.lock", ".dvc")
    call(root, "git", "commit", "-qm", "Run")


def cached(root: Path) -> set[int]:
    objects = root / ".dvc/cache/files/md5"
    return {v for v in range(1, 6) if (objects / known(v)[:2] / known(v)[2:]).exists()}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Values 1 and 2 are committed, 3 was replaced by 4, which is checked out."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    root = tmp_path / "repository"
    root.mkdir()
    # `-m tasks.prune` finds the commands here.
    for name in ("tasks", "preferences", "rlhf", "feedback", "data"):
        (root / name).symlink_to(Path(__file__).parents[2] / name)
    call(root, "git", "init", "-q", "-b", "main")
    call(root, sys.executable, "-m", "dvc", "init", "-q")
    (root / "params").mkdir()
    (root / "dvc.yaml").write_text(PIPELINE)
    for value in (1, 2):
        ran(root, value)
        commit(root)
    for value in (3, 4):
        ran(root, value)
    return root


def test_only_what_nothing_needs_goes_and_only_when_told_to(root: Path) -> None:
    assert cached(root) == {1, 2, 3, 4}

    others, objects, *_ = prune(root)
    assert others.startswith("Another clone that uses this cache is not known here: ")
    assert objects.startswith("DVC's cache: 1 object, ")
    assert cached(root) == {1, 2, 3, 4}

    assert prune(root, "--yes")[-1] == "Removed."
    assert cached(root) == {1, 2, 4}

    call(root, "git", "tag", "v1", "main~1")
    prune(root, "--tips", "--yes")
    assert cached(root) == {1, 2, 4}

    call(root, "git", "tag", "-d", "v1")
    prune(root, "--tips", "--yes")
    assert cached(root) == {2, 4}


@pytest.mark.parametrize("options", [(), ("--tips",)])
def test_an_experiment_keeps_its_outputs_until_it_is_removed(
    root: Path, options: tuple[str, ...]
) -> None:
    commit(root)
    call(root, sys.executable, "-m", "dvc", "exp", "run", "-q", "-n", "fifth", "-S", "value=5")
    call(root, "git", "checkout", "-q", "--", ".")
    call(root, sys.executable, "-m", "dvc", "checkout", "-q")

    prune(root, *options, "--yes")

    assert {4, 5} <= cached(root)
    assert 3 not in cached(root)

    call(root, sys.executable, "-m", "dvc", "exp", "remove", "-q", "fifth")
    prune(root, *options, "--yes")
    assert 5 not in cached(root)


def test_a_cache_that_other_clones_may_use_is_left_alone(root: Path) -> None:
    shared = root.parent / "shared"
    (root / ".dvc/cache").rename(shared)
    (root / ".dvc/cache").symlink_to(shared)
    where = "DVC's cache .dvc/cache lies outside"
    assert where in prune(root, "--yes")[0].replace(f"{root}/", "")

    (root / ".dvc/cache").unlink()
    call(root, sys.executable, "-m", "dvc", "cache", "dir", "--local", str(shared))
    assert f"DVC's cache {shared} lies outside" in prune(root, "--yes")[0]

    objects = shared / "files/md5"
    assert all((objects / known(v)[:2] / known(v)[2:]).exists() for v in (1, 2, 3, 4))


def refused(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.prune", "--yes"],
        cwd=root, env=environment(root.parent), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_nothing_goes_where_it_is_unknown_what_is_needed(root: Path) -> None:
    call(root, "git", "worktree", "add", "-q", "--detach", ".work/variants/gone", "HEAD")
    with sole_use(root / ".work/variants/gone", Driver(name="test")):
        code, message = refused(root)
    assert (code, "gone" in message) == (7, True)

    (root / "dvc.lock").write_text("stages:\n<<<<<<< HEAD\n")
    code, message = refused(root)
    assert (code, "dvc.lock: not valid YAML" in message) == (2, True)

    (root / "dvc.lock").write_bytes(b"")
    code, message = refused(root)
    assert (code, message.startswith("dvc.lock: empty, ")) == (2, True)

    assert cached(root) == {1, 2, 3, 4}
    assert (root / ".work/variants/gone").exists()


def test_a_run_that_only_git_stash_holds_is_not_lost(root: Path) -> None:
    """DVC looks at commits of branches and tags."""
    call(root, "git", "stash", "--quiet")
    code, said = refused(root)
    assert code == 2
    assert said.startswith("git stash holds a run whose outputs would go (models/policy)")
    assert 4 in cached(root)

    (root / ".dvc/cache/files/md5" / known(4)[:2] / known(4)[2:]).unlink()
    prune(root, "--yes")  # Of a run whose outputs are gone already nothing can be lost.
    assert cached(root) == {1, 2}


def checkpoint(root: Path, stage: str, name: str, *, minute: int) -> Path:
    folder = root / ".work" / stage / (name * 16)
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1/state").write_bytes(b"x" * 1_000_000)
    os.utime(folder, (minute * 60, minute * 60))
    return folder


def test_models_of_a_store_elsewhere_may_be_of_other_checkouts_and_stay(root: Path) -> None:
    connect(tracking_uri(root))  # The checkout has had a store of its own.
    shared = f"sqlite:///{root.parent}/shared.db"
    store = connect(shared)
    run = store.client.create_run(store.experiment).info.run_id
    model = store.client.create_logged_model(
        store.experiment, name="m", source_run_id=run, tags={"dvc.md5": known(5)}
    )
    kept = Path(model.artifact_location.removeprefix("file://")) / "model"
    kept.mkdir(parents=True)

    subprocess.run(
        [sys.executable, "-m", "tasks.prune", "--yes"], cwd=root, check=True,
        env={**environment(root.parent), "MLFLOW_TRACKING_URI": shared},
    )  # fmt: skip

    assert kept.exists()


def test_checkpoints_variants_clones_and_copies_that_nothing_needs_go(root: Path) -> None:
    done = checkpoint(root, "sft", "a", minute=1)
    (root / ".work/sft/outcome.json").write_text(json.dumps({"status": "done"}))
    unrecorded = checkpoint(root, "reward@r1", "d", minute=1)
    (root / ".work/reward@r1/outcome.json").write_text(json.dumps({"status": "done"}))
    (root / ".work/reward@r1/made_from.json").write_text("{}")
    older = checkpoint(root, "ppo@r1", "b", minute=1)
    newest = checkpoint(root, "ppo@r1", "c", minute=2)
    (root / ".work/verify").mkdir()
    for name in ("gone", "kept", "mine-kept-seed1"):
        call(root, "git", "worktree", "add", "-q", "--detach", f".work/variants/{name}", "HEAD")
    (root / "params/kept.yaml").write_text("value: 5\n")
    (root / "experiments/params").mkdir(parents=True)
    (root / "experiments/params/mine.yaml").touch()
    share_cache(root, root / ".work/variants/kept")
    ran(root / ".work/variants/kept", 5)
    store = connect(tracking_uri(root))
    folders = {}
    arrived = store.client.create_logged_model(
        store.experiment, name="m", source_run_id=store.client.create_run("0").info.run_id
    )
    just_arrived = Path(arrived.artifact_location.removeprefix("file://")) / "model"
    just_arrived.mkdir(parents=True)
    for digest in map(known, (1, 3, 5, 6)):
        run = store.client.create_run(store.experiment)
        model = store.client.create_logged_model(
            store.experiment, name="m", source_run_id=run.info.run_id, tags={"dvc.md5": digest}
        )
        folders[digest] = Path(model.artifact_location.removeprefix("file://")) / "model"
        folders[digest].mkdir(parents=True)
        if digest == known(6):
            store.client.create_registered_model("rlhf-policy")
            source = f"models:/{model.model_id}"
            tags = {"dvc.md5": digest}
            version = store.client.create_model_version("rlhf-policy", source, tags=tags).version
            store.client.set_registered_model_alias("rlhf-policy", "production", version)

    shown = prune(root, "--yes")

    assert "checkpoints: .work/sft, 1.0 MB" in shown
    assert "checkpoints: .work/ppo@r1, 1.0 MB" in shown
    assert (done.exists(), older.exists(), newest.exists()) == (False, False, True)
    assert unrecorded.exists()  # DVC was killed before it wrote dvc.lock.
    assert not (root / ".work/verify").exists()
    workspaces = sorted(path.parent.name for path in root.glob(".work/variants/*/dvc.yaml"))
    assert workspaces == ["kept", "mine-kept-seed1"]
    assert "gone" not in call(root, "git", "worktree", "list")
    # Of a commit; of nothing; of the variant, which nobody has committed; of production.
    assert [folders[known(v)].exists() for v in (1, 3, 5, 6)] == [True, False, True, True]
    assert just_arrived.exists(), "nobody can say yet of which run it is"
    assert cached(root) == {1, 2, 4, 5}

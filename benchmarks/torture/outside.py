"""Trials of what is around the stages: MLflow, files that were made to do harm, secrets."""

import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

from benchmarks.torture.children import run
from benchmarks.torture.rows import Count, World
from tests.stage_world import STEPS, forget

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""

CONNECT = "import sys; from tasks.shipping import quiet_mlflow; quiet_mlflow(); \
from tasks.mlflow_store import connect; connect(sys.argv[1])"

SYNC = "import sys; from tasks.sync import main; sys.exit(main([]))"


def tracking_away(world: World, _trials: int) -> Count:
    """A stage whose tracking server never answers; then `make sync` to one that does."""
    root = world.root
    forget(root, "base")
    assert run(root, "base") == 0
    plain = _step_gaps(root)
    forget(root, "base")
    assert run(root, "base", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=NOWHERE) == 0
    away = _step_gaps(root)
    store = root / "mlflow.db"
    for _ in range(2):
        _python(root, SYNC, MLFLOW_TRACKING_URI=f"sqlite:///{store}")
    with sqlite3.connect(store) as database:
        steps = [row[0] for row in database.execute("select step from metrics where key = 'loss'")]
    steps.sort()
    held = steps == list(range(1, STEPS["base"] + 1))
    lost, extra = STEPS["base"] - len(set(steps)), len(steps) - len(set(steps))
    store.unlink()
    world.said()
    remark = (
        f"{lost} of {STEPS['base']} points lost and {extra} there twice; the longest gap between "
        f"two steps was {away:.2f} s without the server, {plain:.2f} s without shipping"
    )
    return Count(1, int(held and away < plain + 1), remark)


def fresh_databases(world: World, trials: int) -> Count:
    """Eight processes connect to one SQLite file that does not exist."""
    held = 0
    for _ in range(trials):
        store = world.root / "fresh" / "mlflow.db"
        command = [sys.executable, "-c", CONNECT, f"sqlite:///{store}"]
        environment = _environment()
        many = [subprocess.Popen(command, env=environment) for _ in range(8)]
        held += [process.wait() for process in many] == [0] * 8
        shutil.rmtree(store.parent)
    return Count(trials, held)


def malicious(_world: World, _trials: int) -> Count:
    """The tests that carry them, each in a process of its own; see tests/unit/rlhf."""
    tests = (
        "tests/unit/rlhf/test_model_folders.py::test_code_in_a_model_folder_is_never_run",
        "tests/unit/rlhf/test_model_folders.py::test_pickled_weights_are_never_read",
        "tests/unit/rlhf/test_templates.py",
    )
    done = subprocess.run([sys.executable, "-m", "pytest", *tests], capture_output=True, text=True)
    kinds = "code for config, policy, reward model and tokenizer; three pickles; three templates"
    return Count(11, 11 if done.returncode == 0 else 0, f"{kinds}; and a template of 10 MB")


def canaries(world: World, _trials: int) -> Count:
    """Secrets in variables and in the tracking address; every file written is searched."""
    root = world.root
    names = (
        "HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "WANDB_API_KEY",
        "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PREFECT_API_KEY",
    )  # fmt: skip
    secrets = {name: f"canary-{number:02d}-of-torture" for number, name in enumerate(names)}
    user, password = "canary-08-of-torture", "canary-09-of-torture"
    address = f"http://{user}:{password}@127.0.0.1:9"
    forget(root, "base")
    run(root, "base", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=address, **secrets)
    # And one that ends badly, with the address in what the library says.
    manifest = root / "models/base/manifest.json"
    kept = manifest.read_bytes()
    manifest.write_text("{")
    run(root, "sft", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=address, **secrets)
    manifest.write_bytes(kept)
    found = {
        secret
        for path in root.rglob("*")
        if path.is_file()
        for secret in (*secrets.values(), user, password)
        if secret.encode() in path.read_bytes()
    }
    world.said()
    return Count(10, 10 - len(found), "every file of the workspace and the log were searched")


def _step_gaps(root: Path) -> float:
    """The longest time between two logged steps, in seconds."""
    (spool,) = (root / ".work/spool/base").iterdir()
    rows = [json.loads(line) for line in (spool / "metrics.jsonl").read_text().splitlines()]
    times = [row["time"] for row in rows]
    return max(b - a for a, b in itertools.pairwise(times)) / 1000


def _environment(**changes: str) -> dict[str, str]:
    here = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": here} | changes


def _python(root: Path, code: str, **environment: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=_environment(**environment),
        capture_output=True,
        check=True,
    )

"""Trials with MLflow: a tracking server that goes away, and a database that is new."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.children import fork, run, wait
from benchmarks.torture.world import Count, World
from flows import servers
from tests import stage_world
from tests.stage_world import STEPS, forget

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""

AWAY_SECONDS = 60.0
SLOW_STEPS = 90
"""Steps, one a second, of the stage that trains while the server is away."""

CONNECT = "import sys; from tasks.tracking.shipping import quiet_mlflow; quiet_mlflow(); \
from tasks.tracking.store import connect; connect(sys.argv[1])"

SYNC = "import sys; from tasks.sync import main; sys.exit(main([]))"


def tracking_away(world: World, _trials: int) -> Count:
    """A stage whose tracking server never answers; then `make sync` to one that does."""
    root = world.root
    forget(root, "base")
    assert run(root, "base") == 0
    plain = max(_gaps(root))
    forget(root, "base")
    code = run(root, "base", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=NOWHERE)
    away = max(_gaps(root))
    store = root / "mlflow.db"
    _sync_twice(root, f"sqlite:///{store}")
    lost, twice = _lost_and_twice(store, STEPS["base"])
    store.unlink()
    world.said()
    count = Count()
    wrong = {
        f"exit code {code}": code != 0,
        f"{lost} points lost": lost > 0,
        f"{twice} points there twice": twice > 0,
        f"a step stalled: {away:.2f} s": away > plain + 1,
    }
    count.add("server away for good", wrong)
    count.remark = (
        f"{lost} of {STEPS['base']} points lost and {twice} duplicated; the longest gap between "
        f"two steps was {away:.2f} s without the server, {plain:.2f} s without shipping"
    )
    return count


def tracking_back(world: World, _trials: int) -> Count:
    """MLflow's server is killed while a stage trains, and started again a minute later.

    A step takes a second here, so that the minute falls into the training.
    """
    root, port = world.root, servers.any_free_port()
    store, address = root / "served.db", servers.url(port)
    environment = {"RLHF_SHIPPER": "", "MLFLOW_TRACKING_URI": address}
    forget(root, "base")
    with _mlflow(port, store):
        child = fork(lambda: _slow_base(root, environment), root / "log.txt")
        _until_steps(root, 10)
    time.sleep(AWAY_SECONDS)
    missed = _steps(root)
    with _mlflow(port, store):
        back = _steps(root)
        code = wait(child)
        gaps = _gaps(root)
        _sync_twice(root, address)
    lost, twice = _lost_and_twice(store, SLOW_STEPS)
    store.unlink()
    away, there = max(gaps[10:back]), max([*gaps[:10], *gaps[back:]])
    said = world.said()
    wrong = {
        f"exit code {code}: {said.strip().splitlines()[-1:]}": code != 0,
        f"{lost} points lost": lost > 0,
        f"{twice} points there twice": twice > 0,
        f"a step stalled: {away:.2f} s": away > there + 1,
        f"the training had ended before the server was back ({back} steps)": back >= SLOW_STEPS,
    }
    count = Count()
    count.add("server killed and started again", wrong)
    count.remark = (
        f"down for {AWAY_SECONDS:.0f} s, from step 10 to step {missed} of {SLOW_STEPS} (a second "
        f"each); {lost} points lost, {twice} duplicated; the longest step took {away:.2f} s "
        f"without the server, {there:.2f} s with it"
    )
    forget(root, "base")
    assert run(root, "base") == 0
    return count


def fresh_databases(world: World, trials: int) -> Count:
    """Eight processes connect to one SQLite file that does not exist."""
    count = Count()
    for number in range(trials):
        store = world.root / "fresh" / "mlflow.db"
        command = [sys.executable, "-c", CONNECT, f"sqlite:///{store}"]
        many = [subprocess.Popen(command, env=_environment()) for _ in range(8)]
        codes = [process.wait() for process in many]
        count.add(f"trial {number}", {f"exit codes {codes}": codes != [0] * 8})
        shutil.rmtree(store.parent)
    return count


def _slow_base(root: Path, environment: dict[str, str]) -> int:
    """Pre-training with a pause in each step, and more of them."""
    from rlhf import pretrain  # noqa: PLC0415

    train = pretrain.train

    def slowly(*arguments: object, **options: object) -> Iterator[object]:
        for step in train(*arguments, **options):  # type: ignore[arg-type]
            time.sleep(1)
            yield step

    pretrain.train = slowly  # type: ignore[assignment]
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(_with_steps(text, SLOW_STEPS))
    try:
        return stage_world.run(root, "base", **environment)
    finally:
        (root / "params.yaml").write_text(text)


def _with_steps(text: str, steps: int) -> str:
    known = f"steps: {STEPS['base']}\n"
    assert text.count(known) == 1
    return text.replace(known, f"steps: {steps}\n")


@contextlib.contextmanager
def _mlflow(port: int, store: Path) -> Iterator[None]:
    """An MLflow server process, killed (-9) with all its workers at the end."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", servers.HOST]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{store}", "--workers", "1"]
    settings = _environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
    with store.with_name("mlflow-server.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=store.parent, env=settings, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not servers.is_healthy(f"{servers.url(port)}/health"):
            assert process.poll() is None, "MLflow's server has ended"
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _spool_rows(root: Path) -> list[dict[str, float]]:
    paths = list((root / ".work/spool/base").glob("*/metrics.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _steps(root: Path) -> int:
    return len(_spool_rows(root))


def _until_steps(root: Path, steps: int) -> None:
    deadline = time.monotonic() + 600
    while _steps(root) < steps:
        assert time.monotonic() < deadline, "the stage does not get on"
        time.sleep(0.2)


def _gaps(root: Path) -> list[float]:
    """The time between each two logged steps, in seconds."""
    times = [row["time"] for row in _spool_rows(root)]
    return [(after - before) / 1000 for before, after in itertools.pairwise(times)]


def _lost_and_twice(store: Path, steps: int) -> tuple[int, int]:
    """Points of the loss that MLflow does not have, and those that it has more than once."""
    with sqlite3.connect(store) as database:
        found = Counter(
            row[0] for row in database.execute("select step from metrics where key = 'loss'")
        )
    return len(set(range(1, steps + 1)) - set(found)), sum(found.values()) - len(found)


def _sync_twice(root: Path, address: str) -> None:
    (root / "dvc.yaml").write_text("stages: {}\n")  # Where there is none, nothing is sent.
    for _ in range(2):
        _python(root, SYNC, MLFLOW_TRACKING_URI=address)
    (root / "dvc.yaml").unlink()


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

"""What a stage writes down for MLflow, before any MLflow is involved."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.tracking.spool import Output, RunStart, is_live, open_spool, read_finish
from tasks.workspace.execution import current_execution

START = RunStart("ppo@r1", "run-1", {"ppo.kl_coef": 0.05}, {"models/sft": "aa.dir"}, {})


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_logging_a_step_is_one_write_and_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path, START)
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("it waits for the disk"))
    metrics = {f"metric_{number}": 0.123456789 * number for number in range(10)}
    before = writes()
    for step in range(500):
        spool.log(step, metrics)
    assert writes() - before == 500
    assert len(rows(spool.folder)) == 500


def writes() -> int:
    """How often this process has asked the kernel to write something."""
    counted = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counted["syscw"])


@pytest.mark.parametrize(
    "modules",
    ["tasks.tracking.spool, tasks.tracking.shipping, tasks.tracking.output_tags", "tasks.repro"],
)
def test_neither_tracking_nor_make_repro_imports_mlflow_or_torch(modules: str) -> None:
    code = (
        f"import sys, {modules}\n"
        "print([name for name in ('mlflow', 'torch', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_line_is_on_disk_as_soon_as_log_returns(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, START)
    spool.log(3, {"objective/kl": 1.5})
    (row,) = rows(spool.folder)
    assert row["step"] == 3
    assert row["metrics"] == {"objective/kl": 1.5}
    assert abs(int(str(row["time"])) - time.time() * 1000) < 60_000


def test_a_resumed_stage_comes_back_to_its_folder_and_repeats_nothing(tmp_path: Path) -> None:
    first = open_spool(tmp_path, START)
    first.log(0, {"a": 1.0})
    first.log(1, {"a": 2.0})
    first.finish("KILLED", {}, [])
    second = open_spool(tmp_path, START)
    second.log(1, {"a": 2.0, "b": 5.0})
    second.log(2, {"a": 3.0})
    assert second.folder == first.folder
    assert read_finish(second.folder) is None
    assert [(row["step"], row["metrics"]) for row in rows(second.folder)] == [
        (0, {"a": 1.0}),
        (1, {"a": 2.0}),
        (1, {"b": 5.0}),
        (2, {"a": 3.0}),
    ]


def test_a_line_that_a_kill_cut_in_half_is_dropped_on_resume(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, START)
    spool.log(0, {"a": 1.0})
    spool.finish("KILLED", {}, [])
    with (spool.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step":1,"time":17')
    again = open_spool(tmp_path, START)
    again.log(1, {"a": 2.0})
    assert [row["step"] for row in rows(again.folder)] == [0, 1]


def test_a_stage_that_finished_and_runs_again_gets_a_new_run(tmp_path: Path) -> None:
    first = open_spool(tmp_path, START)
    first.finish("FINISHED", {}, [])
    assert open_spool(tmp_path, START).folder != first.folder


@pytest.mark.parametrize(
    "other",
    [
        replace(START, execution="run-2"),
        replace(START, params={"ppo.kl_coef": 0.0}),
        replace(START, inputs={"models/sft": "bb.dir"}),
        replace(START, tags={"fingerprint": "changed code"}),
    ],
)
def test_whatever_defines_a_stage_makes_another_run(tmp_path: Path, other: RunStart) -> None:
    first = open_spool(tmp_path, START)
    first.finish("KILLED", {}, [])
    assert open_spool(tmp_path, other).folder != first.folder


def test_a_spool_is_live_until_its_stage_ends(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, START)
    assert is_live(spool.folder)
    spool.finish("FINISHED", {}, [])
    assert not is_live(spool.folder)


def test_a_spool_of_a_killed_process_is_not_live(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tasks.tracking.spool import RunStart, open_spool\n"
        "spool = open_spool(Path(sys.argv[1]), RunStart('sft', 'run-1', {}, {}, {}))\n"
        "print(spool.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    folder = Path(done.stdout.strip())
    assert (folder / "start.json").exists()
    assert not is_live(folder)


def test_outputs_are_kept_as_links_until_they_are_sent(tmp_path: Path) -> None:
    model = tmp_path / "models" / "sft"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    spool = open_spool(tmp_path, START)
    spool.finish("FINISHED", {"loss": 0.5}, [Output("policy", Path("models/sft"))])
    finish = read_finish(spool.folder)
    assert finish is not None
    (entry,) = finish["outputs"]
    assert (entry["kind"], entry["path"]) == ("policy", "models/sft")
    kept = spool.folder / entry["kept"] / "model.safetensors"
    assert kept.stat().st_ino == (model / "model.safetensors").stat().st_ino


def test_an_output_that_was_not_published_is_an_error(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, START)
    with pytest.raises(FileNotFoundError, match="reward"):
        spool.finish("FINISHED", {}, [Output("reward_model", Path("models/reward"))])


def test_the_execution_of_a_bare_dvc_repro_changes_with_params_and_commit(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("ppo: {kl_coef: 0.05}\n")
    first = current_execution(tmp_path)
    assert current_execution(tmp_path) == first
    params.write_text("ppo: {kl_coef: 0.0}\n")
    second = current_execution(tmp_path)
    identity = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    for command in (["init", "--quiet"], ["commit", "--allow-empty", "--quiet", "-m", "one"]):
        subprocess.run(["git", "-C", tmp_path, *command], env=os.environ | identity, check=True)
    assert len({first, second, current_execution(tmp_path)}) == 3


def test_a_bare_dvc_repro_in_two_clones_is_two_executions(tmp_path: Path) -> None:
    """Colleagues who run one commit send to one MLflow, which would take both for one run."""
    ids = []
    for clone in (tmp_path / "ana", tmp_path / "ben"):
        clone.mkdir()
        (clone / "params.yaml").write_text("ppo: {kl_coef: 0.05}\n")
        ids.append(current_execution(clone))
    assert len(set(ids)) == 2

    # `dvc exp run --temp` works in a copy that DVC removes afterwards.
    copy = tmp_path / "ana/.dvc/tmp/exps/tmp1"
    copy.mkdir(parents=True)
    (copy / "params.yaml").write_text("ppo: {kl_coef: 0.05}\n")
    assert current_execution(copy) == ids[0]

"""The driver on a real git and DVC repository with two small stages of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.dvc_cache import cache_folder, md5
from tasks.workspace.execution import begin_execution, save_execution

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
"""On a loaded machine."""
PARAMS = """\
run: {seed: 5}
prepare: {}
base: {}
sft: {}
sample: {}
label: {}
validate: {}
reward: {}
ppo: {}
evaluate: {}
best_of_n: {}
report: {}
rounds:
  r1:
    {policy: models/sft, start: models/sft, reward_model: models/sft,
     preferences: data/prepared/preferences}
final: r1
"""
PIPELINE = """\
stages:
  baseline:
    cmd: exec python stage.py baseline
    deps: [stage.py, wanted]
    params: [run]
    outs: [results/baseline]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py evaluate@${key}
      deps: [results/baseline]
      params: [ppo]
      outs: ["results/evaluate/${key}"]
"""
STAGE = """\
import ctypes, json, os, signal, sys, time
from pathlib import Path
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as tasks.running.stage does
name = sys.argv[1]
wanted = Path("wanted").read_text().strip()
work = Path(".work") / name
work.mkdir(parents=True, exist_ok=True)
def end(status, code, message):
    outcome = {"stage": name, "status": status, "code": code, "message": message, "seconds": 0.5,
               "peak_rss_bytes": 1000, "ended_ms": time.time_ns() // 1_000_000,
               "execution": os.environ["RLHF_EXECUTION"]}
    (work / "outcome.json").write_text(json.dumps(outcome))
    sys.exit(code)
def interrupted(*_):
    time.sleep(4 if wanted == "slow" else 0.5)  # the step at hand and a checkpoint take a while
    end("interrupted", 143, "checkpoint kept")
signal.signal(signal.SIGTERM, interrupted)
signal.signal(signal.SIGINT, interrupted)
assert os.environ["RLHF_SHIPPER"] == "driver"
if wanted in ("hang", "slow"):
    (work / "pid").write_text(str(os.getpid()))
    while True:  # one long sleep could begin just after a signal, and sleep on
        time.sleep(0.1)
if wanted == "change" and name != "baseline":
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("seed: 5", "seed: 6"))
if wanted == "edit" and name != "baseline":
    Path("wanted").write_text("success")
if wanted == "blocked" and name != "baseline" or wanted == f"blocked {name}":
    end("blocked", 4, "3 contradictory pairs")
if wanted == "kill":
    sys.path.insert(0, os.environ["PYTHONPATH"])
    from tasks.workspace.work_folder import note_running
    note_running(work, name, os.environ["RLHF_EXECUTION"])
    os.kill(os.getpid(), signal.SIGKILL)
if wanted == "crash":
    sys.exit(1)
if wanted == "note":
    sys.path.insert(0, os.environ["PYTHONPATH"])
    from tasks.running.provenance import entry_digest, note_made_from
    from tasks.running.snapshot import take_snapshot
    used, before = take_snapshot(Path.cwd(), name, ("run", "ppo")), entry_digest(Path.cwd(), name)
folder = Path("results") / name.replace("@", "/")
folder.mkdir(parents=True)
gold = {"mean": 4.5 if name == "baseline" else 8.25, "low": 4.0, "high": 9.0, "n": 8}
(folder / "metrics.json").write_text(json.dumps({"policy": name, "gold": gold}))
if wanted.startswith("large"):
    (folder / "model.safetensors").write_bytes(wanted.encode().ljust(2**26))
if wanted == "note":
    note_made_from(Path.cwd(), used, before)
end("done", 0, "")
"""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "stage.py").write_text(STAGE)
    (folder / "wanted").write_text("success")
    (folder / "params").mkdir()
    (folder / "params" / "no_kl.yaml").write_text("ppo: {kl_coef: 0.0}\n")
    (folder / ".gitignore").write_text(".work\nreports\nresults\n")
    for command in (
        ["git", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
        ["git", "add", "--all"],
        ["git", "-c", "user.name=x", "-c", "user.email=x", "commit", "--quiet", "-m", "one"],
    ):
        subprocess.run(command, cwd=folder, check=True, env=environment())
    return folder


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "root"))


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    # DVC starts stages by the user's shell. This one stays between, unless the command has `exec`.
    shell = os.environ.get("LATE_SHELL", "/bin/sh")
    own = {"PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1", "SHELL": shell}
    return kept | own


def start_driver(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.repro", *arguments],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def drive(root: Path, *arguments: str) -> tuple[int, str, str]:
    process = start_driver(root, *arguments)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def test_a_run_makes_summary_and_table_and_the_next_has_nothing_to_do(root: Path) -> None:
    code, out, err = drive(root)
    assert code == 0, err
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    assert "reports/index.html" in out
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert [policy["name"] for policy in summary["policies"]] == ["sft", "r1"]
    assert summary["seed"] == 5
    assert set(summary["seconds"]["stages"]) == {"baseline", "evaluate@r1"}
    total = summary["seconds"]["total"]
    assert total > 0

    code, out, err = drive(root)
    assert code == 0, err
    assert out.splitlines()[0] == "Nothing to do: all stages are up to date."
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    again = json.loads((root / "reports" / "summary.json").read_text())
    assert again["seconds"]["total"] == total


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        ("blocked", 4, "evaluate@r1 was blocked: 3 contradictory pairs"),
        ("crash", 1, "dvc repro failed; its message is above."),
        (
            "kill",
            137,
            "baseline was killed from outside, most likely because memory ran out. Run again to "
            "resume from its newest checkpoint; to use less memory, lower `micro_batch_size` or "
            "the lengths in params.yaml.",
        ),
    ],
)
def test_a_failure_has_the_stages_exit_code_and_its_reason_as_the_last_line(
    root: Path, wanted: str, code: int, message: str
) -> None:
    (root / "wanted").write_text(wanted)
    found, out, err = drive(root)
    assert found == code
    assert err.splitlines()[-1] == message
    assert "gold" not in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_stage_and_nobody_is_left_behind(
    root: Path, number: signal.Signals
) -> None:
    (root / "wanted").write_text("hang")
    driver = start_driver(root)
    pid = wait_for(root / ".work" / "baseline" / "pid")
    driver.send_signal(number)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert driver.returncode == 143
    assert err.splitlines()[-1].endswith("checkpoint kept")
    assert not Path(f"/proc/{pid}").exists()


SHORT_GRACE = (
    "import sys, tasks.workspace.dvc_process as process, tasks.repro as repro; "
    "process.GRACE_SECONDS = 1.0; sys.exit(repro.main([]))"
)


@pytest.mark.parametrize(("number", "kept"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_only_a_ctrl_c_waits_for_a_long_step(
    root: Path, number: signal.Signals, kept: bool
) -> None:
    (root / "wanted").write_text("slow")
    driver = subprocess.Popen(
        [sys.executable, "-c", SHORT_GRACE],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(root / ".work" / "baseline" / "pid")
    driver.send_signal(number)
    _, err = driver.communicate(timeout=PATIENCE_SECONDS)
    assert (root / ".work" / "baseline" / "outcome.json").exists() == kept
    assert ("checkpoint kept" in err.splitlines()[-1]) == kept
    assert driver.returncode == 143


def test_a_stage_does_not_outlive_a_driver_that_is_killed(root: Path) -> None:
    (root / "wanted").write_text("hang")
    driver = start_driver(root)
    wait_for(root / ".work" / "baseline" / "pid")
    driver.kill()
    driver.communicate(timeout=PATIENCE_SECONDS)  # ends when the last process has closed the pipe
    outcome = json.loads((root / ".work" / "baseline" / "outcome.json").read_text())
    assert outcome["status"] == "interrupted"


def test_what_changes_during_the_run_is_named_and_ends_with_6(root: Path) -> None:
    (root / "wanted").write_text("edit")

    code, out, err = drive(root)

    assert code == 6
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    assert err.splitlines()[-1] == (
        "All stages have run, but some became stale during the run: baseline (wanted). Run again."
    )
    assert drive(root)[0] == 0


def test_a_parameter_that_changes_during_the_run_is_named_by_its_key(root: Path) -> None:
    (root / "wanted").write_text("change")

    code, _, err = drive(root)

    assert code == 6
    assert "baseline (params.yaml: run.seed)" in err.splitlines()[-1]


def test_an_entry_that_dvc_recorded_falsely_is_named_and_ends_with_6(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell that DVC starts the last stage by edits params.yaml once the stage has ended."""
    (root / "wanted").write_text("note")
    shell = tmp_path / "late-shell"
    edit = "sed -i 's/ppo: {}/ppo: {kl_coef: 0.09}/' params.yaml"
    shell.write_text(
        f'#!/bin/sh\n/bin/sh "$@" && case "$*" in *evaluate*) {edit};; esac\n', encoding="utf-8"
    )
    shell.chmod(0o755)
    monkeypatch.setenv("LATE_SHELL", str(shell))
    wrong = (
        "evaluate@r1: dvc.lock is wrong about its result: "
        "params.yaml: ppo.kl_coef (used None, recorded 0.09)"
    )

    for _ in ("run", "unchanged"):
        code, out, err = drive(root)
        assert code == 6, err
        assert wrong in err.splitlines()[-1]
        assert "make doctor FIX=1" in err.splitlines()[-1]
        assert "up to date" not in out
    doctor = [sys.executable, "-m", "tasks.doctor", "--fix"]
    subprocess.run(doctor, cwd=root, env=environment(), check=False, capture_output=True)
    code, out, _ = drive(root)
    assert "Running stage 'evaluate@r1'" in out
    assert code == 0


@pytest.mark.parametrize("arguments", [(), ("--variant", "no_kl")])
def test_beside_a_running_one_a_second_ends_at_once_with_7(
    root: Path, arguments: tuple[str, ...]
) -> None:
    (root / "wanted").write_text("hang")
    first = start_driver(root, *arguments)
    workspace = root / ".work/variants/no_kl" if arguments else root
    wait_for(workspace / ".work/baseline/pid")
    (root / "wanted").write_text("success")

    code, out, err = drive(root, *arguments)

    assert (code, out) == (7, "")
    name = "make repro VARIANT=no_kl" if arguments else "make repro"
    assert f"`{name}` works here since 20" in err
    assert f"(process {first.pid})" in err
    assert len(err.splitlines()) == 1
    assert (workspace / "wanted").read_text() == ("hang" if arguments else "success")
    first.terminate()
    first.communicate(timeout=PATIENCE_SECONDS)


def test_beside_a_flow_run_it_ends_at_once_with_7(root: Path) -> None:
    with sole_use(root, Driver(name="flow run kl 0.10, 1 round, 6cb38ae", flow_run="5d7e")):
        code, out, err = drive(root)
    assert (code, out) == (7, "")
    assert "flow run kl 0.10, 1 round, 6cb38ae works here since 20" in err


def test_beside_a_bare_dvc_repro_it_ends_with_7(root: Path) -> None:
    (root / "wanted").write_text("hang")
    with subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=root,
        env=environment() | {"RLHF_EXECUTION": "bare", "RLHF_SHIPPER": "driver"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as dvc:
        wait_for(root / ".work/baseline/pid")
        code, out, err = drive(root)
        os.killpg(dvc.pid, signal.SIGTERM)
    assert (code, out) == (7, "")
    assert f"`dvc repro` works here (process {dvc.pid})" in err


def test_a_run_that_dvc_restores_as_a_whole_has_its_own_run_in_mlflow(root: Path) -> None:
    text = (root / "params.yaml").read_text()
    for kl_coef in ("0.1", "0.2", "0.1"):
        (root / "params.yaml").write_text(text.replace("ppo: {}", f"ppo: {{kl_coef: {kl_coef}}}"))
        code, out, err = drive(root)
        assert code == 0, err
    assert "Stage 'evaluate@r1' is cached - skipping run" in out

    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    assert [run.data.params["ppo.kl_coef"] for run in runs] == ["0.1", "0.2", "0.1"]
    assert [run.data.metrics["gold"] for run in runs] == [8.25] * 3
    assert all(run.info.status == "FINISHED" for run in runs)
    assert len({run.info.run_name for run in runs}) == 3


def test_a_run_that_stops_shows_the_rounds_before_in_mlflow(root: Path) -> None:
    text = (root / "params.yaml").read_text()
    first = text[text.index("  r1:") : text.index("final:")]
    second = first.replace("r1:", "r2:")
    (root / "params.yaml").write_text(
        text.replace(first, first + second).replace("final: r1", "final: r2")
    )
    # Of an earlier execution.
    (root / "results/evaluate/r2").mkdir(parents=True)
    (root / "results/evaluate/r2/metrics.json").write_text('{"gold": {"mean": 9.75}}')
    (root / "wanted").write_text("blocked evaluate@r2")
    code, _, err = drive(root)
    assert code == 4, err
    client = MlflowClient(f"sqlite:///{root}/.work/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    curve = client.get_metric_history(run.info.run_id, "gold")
    assert [(point.step, point.value) for point in curve] == [(0, 4.5), (1, 8.25)]


def test_large_outputs_are_links_to_the_cache_that_a_later_run_leaves_alone(root: Path) -> None:
    """64 MiB; what is smaller is a copy, as DVC makes it."""
    results = root / "results/baseline"
    (root / "wanted").write_text("large 1")
    assert drive(root)[0] == 0
    first = md5(results / "model.safetensors")
    objects = cache_folder(root)
    assert (results / "model.safetensors").samefile(objects / first[:2] / first[2:])
    small = md5(results / "metrics.json")
    assert not (results / "metrics.json").samefile(objects / small[:2] / small[2:])
    assert "Nothing to do" in drive(root)[1]

    (root / "wanted").write_text("large 2")
    assert drive(root)[0] == 0
    second = md5(results / "model.safetensors")
    assert second != first
    assert (results / "model.safetensors").samefile(objects / second[:2] / second[2:])
    assert md5(objects / first[:2] / first[2:]) == first


def test_a_variant_runs_in_its_own_workspace_and_reuses_what_is_the_same(root: Path) -> None:
    assert drive(root)[0] == 0
    code, out, err = drive(root, "--variant", "no_kl")
    assert code == 0, err
    assert ".work/variants/no_kl/reports/index.html" in out
    assert "Label by hand   make annotate VARIANT=no_kl\n" in out
    assert "Stage 'baseline' is cached - skipping run, checking out outputs" in out
    workspace = root / ".work" / "variants" / "no_kl"
    execution = json.loads((workspace / ".work" / "execution.json").read_text())
    assert execution["id"].endswith("-no_kl")
    assert (workspace / "reports" / "summary.json").exists()
    code, out, _ = drive(root, "--variant", "no_kl")
    assert (code, out.splitlines()[0]) == (0, "Nothing to do: all stages are up to date.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("params.yaml", PARAMS.replace("ppo: {}", "ppo: {kl_coeff: 0.1}")), "ppo.kl_coef"),
        (("params.yaml", PARAMS.replace("final: r1", "final: r9")), "final: 'r9'"),
        (None, "no variant 'nothing'"),
    ],
)
def test_bad_input_ends_with_2_before_anything_starts(
    root: Path, change: tuple[str, str] | None, message: str
) -> None:
    if change is not None:
        (root / change[0]).write_text(change[1])
    code, out, err = drive(root, *([] if change else ["--variant", "nothing"]))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not (root / ".work").exists()
    assert not (root / "reports").exists()


def test_an_execution_continues_until_it_reaches_its_end_or_its_params_change(
    tmp_path: Path,
) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("ppo: {kl_coef: 0.05}\n")
    first = begin_execution(tmp_path)
    assert begin_execution(tmp_path).id == first.id
    params.write_text("ppo: {kl_coef: 0.0}\n")
    second = begin_execution(tmp_path)
    assert second.id != first.id
    second.unfinished = False
    save_execution(tmp_path, second)
    assert begin_execution(tmp_path).id != second.id


def test_a_run_of_changed_params_names_the_time_of_the_stages_that_were_done(root: Path) -> None:
    """The stages take 0.5 s each, as they say."""
    code, out, err = drive(root)
    assert code == 0, err
    assert "earlier runs" not in out
    params = root / "params.yaml"
    params.write_text(params.read_text().replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    code, out, err = drive(root)
    assert code == 0, err
    assert "not counting 1 stage that earlier runs had done in 0.5 s" in " ".join(out.split())
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert summary["seconds"]["earlier"] == {"baseline": 0.5}


def test_a_run_that_stops_names_no_time_of_earlier_runs(root: Path) -> None:
    """Its second round is that of other inputs, and no part of what it shows."""
    params = root / "params.yaml"
    second = """\
  r2:
    {policy: models/rounds/r1/policy, start: models/rounds/r1/policy, reward_model: models/sft,
     preferences: data/prepared/preferences}
"""
    params.write_text(params.read_text().replace("final: r1\n", f"{second}final: r2\n"))
    code, _, err = drive(root)
    assert code == 0, err
    params.write_text(params.read_text().replace("ppo: {}", "ppo: {kl_coef: 0.2}"))
    (root / "wanted").write_text("blocked evaluate@r1")
    assert drive(root)[0] == 4
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert set(summary["seconds"]["stages"]) == {"baseline", "evaluate@r1"}
    assert "earlier" not in summary["seconds"]


def test_stages_that_ended_before_the_driver_was_killed_count_for_the_run(root: Path) -> None:
    (root / "wanted").write_text("blocked evaluate@r1")
    assert drive(root)[0] == 4
    for name, seconds in (("baseline", 700.0), ("evaluate@r1", 50.0)):
        outcome = root / ".work" / name / "outcome.json"
        outcome.write_text(json.dumps(json.loads(outcome.read_text()) | {"seconds": seconds}))
    execution = root / ".work/execution.json"
    execution.write_text(json.dumps(json.loads(execution.read_text()) | {"seconds": 0.0}))
    assert drive(root)[0] == 4
    assert json.loads(execution.read_text())["seconds"] > 750


def test_where_nobody_labels_nobody_is_told_to_label_by_hand(root: Path) -> None:
    text = (root / "params.yaml").read_text().replace("label: {}", "label: {annotators: none}")
    # Without a reward model there need be no preferences of one's own.
    text = text.replace("reward: {}", "reward: {model: none}")
    text = text.replace("ppo: {}", "ppo: {rewards: {learned: 0, sentiment: 1}, value_init: zero}")
    (root / "params.yaml").write_text(text)
    code, out, err = drive(root)
    assert code == 0, err
    assert "MLflow, Prefect make ui\n" in out
    assert "Label by hand" not in out


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text())

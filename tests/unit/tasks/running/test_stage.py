"""The stage runner, around real little bodies in processes of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.params.loading import load_params
from tasks.running.inputs import fill_paths, input_hashes

ROOT = Path(__file__).resolve().parents[4]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
PATIENCE_SECONDS = 300
"""On a loaded machine."""

PROBE = '''
import sys, time
from pathlib import Path
from preferences.reader import MalformedDataError
from rlhf.bits import BitsError
from tasks.running.outcome import StageEnd
from tasks.running.runner import run_stage
from tasks.tracking.spool import Output


class Hopeless(Exception):
    """Declared to the runner as an end of training."""


class QuiteHopeless(Hopeless):
    pass


def run(stage):
    """Probe the runner."""
    folder = stage.staging.directory("results/probe")
    (folder / "half.txt").write_text("half")
{body}
    (folder / "whole.txt").write_text("whole")


if __name__ == "__main__":
    sys.exit(run_stage("report", run, {arguments}, errors={{Hopeless: "stopped"}}))
'''
"""A stage of section `report` that writes half of its output, does `body`, writes the rest."""


def hear_ctrl_c() -> None:
    """Tests that run in the background ignore Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Workplace:
    """A folder with params.yaml in which probes run."""

    def __init__(self, root: Path):
        self.root = root
        shutil.copy(ROOT / "params.yaml", root)
        self.processes: list[subprocess.Popen[str]] = []

    def script(self, body: str, arguments: str = "name='probe'") -> Path:
        indented = "\n".join(f"    {line}" for line in body.splitlines())
        script = self.root.parent / f"probe{len(self.processes)}.py"
        script.write_text(PROBE.format(body=indented, arguments=arguments))
        return script

    def start(self, body: str, *options: str, arguments: str = "name='probe'"):
        process = subprocess.Popen(
            [sys.executable, str(self.script(body, arguments)), *options],
            cwd=self.root,
            env={**self.environment(), "RLHF_EXECUTION": "run-7"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_ctrl_c,
        )
        self.processes.append(process)
        return process

    def run(self, body: str, *options: str, arguments: str = "name='probe'"):
        """Exit code and stderr of a probe that ends by itself."""
        process = self.start(body, *options, arguments=arguments)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, err

    @staticmethod
    def environment() -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"}

    def outcome(self, stage: str = "probe"):
        return json.loads((self.root / ".work" / stage / "outcome.json").read_text())

    def finish(self):
        (path,) = self.root.glob(".work/spool/probe/*/finish.json")
        return json.loads(path.read_text())

    def output(self) -> list[str]:
        return sorted(path.name for path in self.root.glob("results/probe/*"))

    def everything(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    root = tmp_path / "root"
    root.mkdir()
    place = Workplace(root)
    yield place
    for process in place.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


STARTED = "Path('started').touch()\n"
# One long sleep could begin just after a signal, and sleep on.
HANG = STARTED + "while True: time.sleep(0.1)"


# --- How it ends ---------------------------------------------------------------------------------


def test_a_stage_that_succeeds_publishes_its_output_and_says_so(place: Workplace):
    code, err = place.run("stage.final({'loss': 0.5, 'nested': {'n': 3}, 'name': 'x', 'ok': True})")

    assert (code, err) == (0, "")
    assert place.output() == ["half.txt", "whole.txt"]
    assert not (place.root / ".work/probe/staging").exists()
    outcome = place.outcome()
    assert outcome["stage"] == "probe"
    assert (outcome["status"], outcome["code"], outcome["message"]) == ("done", 0, "")
    assert outcome["execution"] == "run-7"
    assert 0 < outcome["seconds"] < 180
    # Texts and truth values are no metrics.
    assert place.finish()["metrics"] == {"loss": 0.5, "nested.n": 3.0}
    assert place.finish()["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ("raise StageEnd('bad_input', 'no rows')", "bad_input", 2, "no rows"),
        ("raise MalformedDataError(['a.jsonl:3: not JSON'], 1)", "bad_input", 2, "a.jsonl:3: not"),
        ("raise BitsError('other kernels')", "bad_input", 2, "other kernels"),
        ("raise StageEnd('stopped', 'collapsed')", "stopped", 3, "collapsed"),
        ("raise Hopeless('KL exploded')", "stopped", 3, "KL exploded"),
        ("raise QuiteHopeless('KL exploded')", "stopped", 3, "KL exploded"),
        ("raise StageEnd('blocked', '3 leaks')", "blocked", 4, "3 leaks"),
        ("raise StageEnd('waiting', '12 of 40 missing')", "waiting", 5, "12 of 40 missing"),
        ("raise RuntimeError('a bug')", "failed", 1, "RuntimeError: a bug"),
        ("sys.exit(0)", "failed", 1, "SystemExit: 0"),
    ],
)
def test_every_other_end_has_its_code_and_publishes_nothing(
    place: Workplace, body: str, status: str, code: int, message: str
):
    found, err = place.run(body)

    assert found == code
    assert place.output() == []
    outcome = place.outcome()
    assert (outcome["status"], outcome["code"]) == (status, code)
    assert outcome["message"].startswith(message)
    assert err.splitlines()[-1].startswith(f"probe: {message}")
    assert ("Traceback" in err) == (status == "failed")
    assert place.finish()["status"] == "FAILED"
    assert place.finish()["outputs"] == []


def test_what_an_earlier_run_published_survives_a_failure(place: Workplace):
    place.run("")
    code, _ = place.run("(folder / 'new.txt').touch()\nraise RuntimeError('a bug')")

    assert code == 1
    assert place.output() == ["half.txt", "whole.txt"]


def test_what_a_failure_left_in_the_staging_folder_is_never_published(place: Workplace):
    place.run("(folder / 'wrong.txt').touch()\nraise RuntimeError('a bug')")
    code, _ = place.run("")

    assert code == 0
    assert place.output() == ["half.txt", "whole.txt"]


def test_outputs_kept_for_mlflow_are_linked_when_they_are_published(place: Workplace):
    place.run("stage.keep(Output('artifact', Path('results/probe')))")

    (entry,) = place.finish()["outputs"]
    (spool,) = place.root.glob(".work/spool/probe/*")
    assert entry["path"] == "results/probe"
    assert (spool / entry["kept"] / "whole.txt").read_text() == "whole"


def test_every_logged_step_is_in_history_and_on_its_way_to_mlflow(place: Workplace):
    place.run(
        "for step in (1, 2):\n    stage.log(step, {'loss': 1 / step})\nstage.write_history(folder)"
    )

    history = (place.root / "results/probe/history.csv").read_text()
    (lines,) = place.root.glob(".work/spool/probe/*/metrics.jsonl")
    spooled = [json.loads(line) for line in lines.read_text().splitlines()]
    assert history == "step,loss\n1,1\n2,0.5\n"
    (system,) = place.root.glob(".work/spool/probe/*/system.jsonl")
    assert json.loads(system.read_text())["metrics"]["system/process_memory_megabytes"] > 0
    assert [(row["step"], row["metrics"]) for row in spooled] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
    ]


# --- Before it begins ----------------------------------------------------------------------------


def test_wrong_params_end_with_2_all_problems_and_nothing_written(place: Workplace):
    path = place.root / "params.yaml"
    text = path.read_text()
    text = text.replace("kl_coef:", "kl_coeff:")
    path.write_text(re.sub(r"threads: \d+", "threads: zero", text))

    code, err = place.run("")

    assert code == 2
    assert err.splitlines() == [
        "params.yaml: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?",
        "params.yaml: run.threads: input should be a valid integer, found 'zero'",
    ]
    assert place.everything() == ["params.yaml"]


def test_no_params_end_with_2_and_nothing_written(place: Workplace):
    (place.root / "params.yaml").unlink()

    assert place.run("") == (2, "params.yaml: no such file\n")
    assert place.everything() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--round", "r9"], "--round: 'r9' is not one of r1, r2, r3\n"),
        ([], "the following arguments are required: --round"),
        (["--round", "r1", "--rond", "r1"], "unrecognized arguments: --rond"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_nothing_written(
    place: Workplace, options: list[str], message: str
):
    code, err = place.run("", *options, arguments="per_round=True")

    assert code == 2
    assert message in err
    assert place.everything() == ["params.yaml"]


def test_a_stage_of_a_round_is_named_after_it_and_knows_where_it_starts(place: Workplace):
    body = "(folder / 'round.txt').write_text(f'{stage.round_key} {stage.round.policy}')"
    code, _ = place.run(body, "--round", "r2", arguments="per_round=True")

    assert code == 0
    assert place.outcome("report@r2")["stage"] == "report@r2"
    found = (place.root / "results/probe/round.txt").read_text()
    assert found == "r2 models/rounds/r1/policy"


def test_help_says_what_the_stage_does_and_runs_nothing(place: Workplace):
    process = place.start("", "--help")
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 0
    assert "python -m tasks.report" in out
    assert "Probe the runner." in out
    assert place.everything() == ["params.yaml"]


# --- Interrupted ---------------------------------------------------------------------------------


SLOW_STEP = """\
with stage.signals.patient():
    Path('started').touch()
    time.sleep(10)
    if stage.signals.asked:
        Path('checkpoint').touch()
        raise KeyboardInterrupt
"""


@pytest.mark.long
def test_after_ctrl_c_a_step_may_take_as_long_as_it_needs_and_is_kept(place: Workplace):
    process = place.start(SLOW_STEP)
    wait_for((place.root / "started").exists)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 143
    assert (place.root / "checkpoint").exists()
    assert err.splitlines()[0] == (
        "probe will end after the current step and write a checkpoint; a second Ctrl-C ends it at "
        "once and loses its work since the newest checkpoint"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_nothing_published(place: Workplace, number: signal.Signals):
    process = place.start(HANG)
    wait_for((place.root / "started").exists)

    process.send_signal(number)
    wait_for(lambda: process.poll() is not None)

    assert process.returncode == 143
    assert place.output() == []
    assert (place.outcome()["status"], place.outcome()["code"]) == ("interrupted", 143)
    assert place.finish()["status"] == "KILLED"
    assert "run it again" in process.communicate()[1]


@LINUX
def test_it_dies_with_its_parent(place: Workplace):
    script = place.script(HANG)
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, sys.argv[1]])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    middle = subprocess.Popen(
        [sys.executable, "-c", parent, str(script)],
        cwd=place.root,
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert middle.stdout is not None
    child = int(middle.stdout.readline())
    wait_for((place.root / "started").exists)

    middle.kill()
    middle.communicate()
    wait_for(lambda: not running(child))

    assert place.outcome()["status"] == "interrupted"
    assert place.output() == []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def waits_for_a_lock(pid: int) -> bool:
    waiting = re.compile(rf"-> FLOCK .* {pid} ")
    return bool(waiting.search(Path("/proc/locks").read_text()))


# --- One at a time -------------------------------------------------------------------------------


@LINUX
def test_two_stages_at_once_run_one_after_the_other(place: Workplace):
    noting = (
        "with open('order.txt', 'a', buffering=1) as order:\n"
        "    order.write('begin\\n')\n"
        "    while not Path('end').exists(): time.sleep(0.1)\n"
        "    order.write('end\\n')"
    )
    processes = [place.start(noting), place.start(noting, arguments="name='other'")]
    wait_for((place.root / "order.txt").exists)
    wait_for(lambda: any(waits_for_a_lock(process.pid) for process in processes))
    time.sleep(1.5)  # The stage tells of a wait of more than a second.
    (place.root / "end").touch()
    said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    order = (place.root / "order.txt").read_text().split()
    assert order == ["begin", "end", "begin", "end"]
    assert len(re.findall(r"(?:probe|other) waited \d+ s for another stage to end", "".join(said)))


def test_the_lock_of_a_stage_that_was_killed_holds_nobody_up(place: Workplace):
    process = place.start(HANG)
    wait_for((place.root / "started").exists)
    process.kill()
    process.wait()

    assert place.run("")[0] == 0
    assert place.output() == ["half.txt", "whole.txt"]


# --- What it knows of its inputs -----------------------------------------------------------------

LOCK = """
schema: '2.0'
stages:
  prepare:
    cmd: python -m tasks.prepare
    outs:
    - {path: data/prepared, hash: md5, md5: aaa.dir, size: 1, nfiles: 1}
  sft:
    cmd: python -m tasks.sft
    outs:
    - {path: models/sft, hash: md5, md5: bbb.dir, size: 1, nfiles: 1}
    - {path: models/sft2, hash: md5, md5: ccc.dir, size: 1, nfiles: 1}
  reward@r1:
    cmd: python -m tasks.reward --round r1
    outs:
    - {path: models/rounds/r1/reward, hash: md5, md5: ddd.dir, size: 1, nfiles: 1}
"""


@pytest.mark.parametrize("lacking", ["manifest.json", "its seal"])
def test_a_model_without_a_whole_manifest_is_refused_before_anything_is_written(
    place: Workplace, lacking: str
):
    model = place.root / "models/sft"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    found = "expected a manifest, found no file"
    if lacking == "its seal":
        (model / "manifest.json").write_text('{"files": {}}')
        found = "cannot be read (KeyError: 'seal')"

    code, err = place.run("", arguments="name='probe', inputs=('models/sft',)")

    assert code == 2
    remedy = "To restore it: make doctor, then dvc checkout --force models/sft"
    assert err == f"probe: models/sft/manifest.json: {found}. {remedy}\n"
    assert place.output() == []
    assert list(place.root.glob(".work/spool/*")) == []


def test_inputs_are_hashed_as_dvc_recorded_them(tmp_path: Path):
    assert input_hashes(tmp_path, ["models/sft"]) == {}
    (tmp_path / "dvc.lock").write_text(LOCK)

    assert input_hashes(tmp_path, ["models/sft"]) == {"models/sft": "bbb.dir"}
    assert input_hashes(tmp_path, ["models", "data/prepared"]) == {
        "data/prepared": "aaa.dir",
        "models/rounds/r1/reward": "ddd.dir",
        "models/sft": "bbb.dir",
        "models/sft2": "ccc.dir",
    }


def test_the_paths_of_a_round_are_filled_in():
    params = load_params(ROOT / "params.yaml")
    paths = ["data/prepared", "{policy}", "{preferences}", "models/rounds/{key}/reward"]

    assert fill_paths(paths, params, "r2") == [
        "data/prepared",
        "models/rounds/r1/policy",
        "data/rounds/r1/preferences",
        "models/rounds/r2/reward",
    ]
    assert fill_paths(["models/rounds/{final}/policy"], params, None) == ["models/rounds/r3/policy"]


def test_params_and_input_hashes_go_to_mlflow_with_the_run(place: Workplace):
    (place.root / "dvc.lock").write_text(LOCK)
    code, _ = place.run("", arguments="name='probe', inputs=('models/sft',)")

    (path,) = place.root.glob(".work/spool/probe/*/start.json")
    start = json.loads(path.read_text())
    assert code == 0
    assert start["inputs"] == {"models/sft": "bbb.dir"}
    assert start["params"]["report.samples"] == load_params(ROOT / "params.yaml").report.samples
    assert start["params"]["run.seed"] == load_params(ROOT / "params.yaml").run.seed
    assert {key.partition(".")[0] for key in start["params"]} == {"run", "report"}

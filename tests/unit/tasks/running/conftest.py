"""A folder in which little stages run, in processes of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    sys.exit(run_stage({section!r}, run, {arguments}, errors={{Hopeless: "stopped"}}))
'''
"""A stage that writes half of its output, does `body`, writes the rest."""


def hear_ctrl_c() -> None:
    """Tests that run in the background ignore Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Workplace:
    """A folder with params.yaml in which probes run."""

    def __init__(self, root: Path):
        self.root = root
        shutil.copy(ROOT / "params.yaml", root)
        self.processes: list[subprocess.Popen[str]] = []

    def script(self, body: str, arguments: str = "name='probe'", section: str = "report") -> Path:
        indented = "\n".join(f"    {line}" for line in body.splitlines())
        script = self.root.parent / f"probe{len(self.processes)}.py"
        script.write_text(PROBE.format(body=indented, arguments=arguments, section=section))
        return script

    def start(
        self, body: str, *options: str, arguments: str = "name='probe'", section: str = "report"
    ):
        process = subprocess.Popen(
            [sys.executable, str(self.script(body, arguments, section)), *options],
            cwd=self.root,
            env={**self.environment(), "RLHF_EXECUTION": "run-7"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_ctrl_c,
        )
        self.processes.append(process)
        return process

    def run(
        self, body: str, *options: str, arguments: str = "name='probe'", section: str = "report"
    ):
        """Exit code and stderr of a probe that ends by itself."""
        process = self.start(body, *options, arguments=arguments, section=section)
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


STARTED = "Path('started').touch()\n"
# One long sleep could begin just after a signal, and sleep on.
HANG = STARTED + "while True: time.sleep(0.1)"

"""What is named where a newest release breaks; pip's and pytest's words are as they write them."""

import subprocess
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from benchmarks import newest

ROOT = Path(__file__).resolve().parents[2]

PIP = """\
ERROR: Ignored the following versions that require a different python version: 0.9 Requires <3.9
ERROR: Could not find a version that satisfies the requirement certifi>=2026.10.19 (from prefect) \
(from versions: 0.0.1, 2026.10.18)
ERROR: No matching distribution found for certifi>=2026.10.19
"""
PYTEST = """\
..F
FAILED tests/integration/test_tracking.py::test_a - AssertionError: assert 1 == 2
!!!!!!!!!!!!!!!!!!!!!!!!!! stopping after 1 failures !!!!!!!!!!!!!!!!!!!!!!!!!!!
1 failed, 2 passed in 3.2s
"""


def test_what_pip_lacks_and_the_test_that_failed_are_named():
    assert newest.why_not(PIP) == (
        "Could not find a version that satisfies the requirement certifi>=2026.10.19 (from prefect)"
    )
    assert newest.why_not("") == "pip says nothing"
    assert newest.first_failure(PYTEST) == (
        "FAILED tests/integration/test_tracking.py::test_a - AssertionError: assert 1 == 2"
    )


@pytest.mark.long
def test_what_is_installed_in_front_comes_before_what_is_here(tmp_path: Path):
    python = newest.environment(tmp_path / "one")
    show = "import prefect, importlib.metadata as m; print(m.version('dvc'), prefect.__file__)"

    def seen() -> list[str]:
        done = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True)
        return done.stdout.split()

    here = sysconfig.get_path("purelib")
    assert seen() == [version("dvc"), f"{here}/prefect/__init__.py"]
    (own,) = (tmp_path / "one").glob("lib/python*/site-packages")
    (own / "dvc-99.dist-info").mkdir()
    (own / "dvc-99.dist-info" / "METADATA").write_text("Name: dvc\nVersion: 99\n")
    assert seen()[0] == "99"


@pytest.mark.long
def test_a_command_that_is_started_by_its_name_sees_what_is_in_front(tmp_path: Path):
    python = newest.environment(tmp_path / "one")
    command = python.parent / "uvicorn"
    assert subprocess.run([command, "--version"], capture_output=True, check=True).stdout
    (own,) = (tmp_path / "one").glob("lib/python*/site-packages")
    (own / "uvicorn").mkdir()
    (own / "uvicorn" / "__init__.py").touch()
    (own / "uvicorn" / "main.py").write_text("def main(): print('in front')\n")
    done = subprocess.run([command], capture_output=True, text=True, check=True)
    assert done.stdout == "in front\n"


def test_a_package_that_is_not_tried_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        newest.main(["torch"])
    assert ended.value.code == 2
    assert "'torch' is none of prefect, mlflow, dvc, great-expectations" in capsys.readouterr().err


def test_a_job_tries_them_each_week_with_the_python_of_the_project():
    path = ROOT / ".github/workflows/newest.yaml"
    workflow = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    assert set(workflow["on"]) == {"schedule", "workflow_dispatch"}
    (timer,) = workflow["on"]["schedule"]
    minute, hour, day, month, weekday = timer["cron"].split()
    assert (day, month) == ("*", "*")
    assert (int(minute) < 60, int(hour) < 24, int(weekday) < 7) == (True, True, True)
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert [command.split(" | ")[0] for command in commands] == ["make newest"]
    assert [step["shell"] for step in job["steps"] if "run" in step] == ["bash"]
    (python,) = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in
                 step.get("uses", "")]  # fmt: skip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"].startswith(f">={python},")


def test_every_test_that_they_are_tried_on_is_there():
    assert [path for path in newest.TESTS if not (ROOT / path).exists()] == []

"""What is named where a newest release breaks; pip's and pytest's words are as they write them."""

import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import newest

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


def test_a_package_that_is_not_tried_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        newest.main(["torch"])
    assert ended.value.code == 2
    assert "'torch' is none of prefect, mlflow, dvc, great-expectations" in capsys.readouterr().err

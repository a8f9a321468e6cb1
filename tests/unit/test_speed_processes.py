"""The speed benchmark's works run one to a process, on a GPU in one that nobody forked."""

import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import speed, speed_processes


def test_work_runs_apart_and_its_failure_is_ours(capfd: pytest.CaptureFixture[str]):
    def broken() -> dict[str, float]:
        raise ZeroDivisionError

    assert speed_processes.apart(lambda: {"seconds": 1.5}) == {"seconds": 1.5}
    with pytest.raises(SystemExit):
        speed_processes.apart(broken)
    assert "ZeroDivisionError" in capfd.readouterr().err


EACH = """
import json, os, sys
from benchmarks.speed_processes import each
works = {name: lambda: {"process": os.getpid()} for name in ("one", "other")}
print(json.dumps(each(works, sys.argv[1], sys.argv) | {"parent": os.getpid()}))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.long)])
def test_each_work_has_a_process_of_its_own_on_either_device(tmp_path: Path, device: str):
    """On a GPU a new one: the command prints the parent's line last, as the scripts do."""
    script = tmp_path / "works.py"
    script.write_text(EACH)
    environment = os.environ | {"PYTHONPATH": str(speed.ROOT)}
    found = speed._run([sys.executable, str(script), device], environment)
    processes = [found[name]["process"] for name in ("one", "other")]
    assert len({*processes, found["parent"]}) == 3


def test_no_process_is_forked_once_the_gpu_is_in_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(AssertionError, match="forked"):
        speed_processes.apart(dict)

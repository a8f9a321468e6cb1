"""A large model is stored once as soon as the next stage has begun, not only when the run ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BYTES = (64 << 20) + 1
"""One more than what is linked."""

DVC_YAML = f"""
stages:
  base:
    cmd: {sys.executable} base.py
    outs: [models/base]
  report:
    cmd: {sys.executable} report.py
    deps: [models/base]
    outs: [reports]
"""
BASE = f"""
from pathlib import Path
folder = Path("models/base")
folder.mkdir(parents=True)
folder.joinpath("model.safetensors").write_bytes(b"w" * {BYTES})
folder.joinpath("config.json").write_text("{{}}")
"""
REPORT = """
import sys
from tasks.running.runner import run_stage

def run(stage):
    links = [path.stat().st_nlink for path in sorted(stage.root.glob("models/base/*"))]
    stage.staging.file("reports/index.html").write_text(repr(links))

sys.exit(run_stage("report", run, arguments=[]))
"""


def dvc(root: Path, *arguments: str) -> str:
    drivers = {"RLHF_EXECUTION", "DVC_STAGE"}
    environment = {key: value for key, value in os.environ.items() if key not in drivers}
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root,
        env=environment | {"PYTHONPATH": str(REPOSITORY), "RLHF_SHIPPER": "driver"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    dvc(tmp_path, "init", "--no-scm", "--quiet")
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "report.py").write_text(REPORT)
    (tmp_path / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text())
    return tmp_path


@pytest.mark.long
def test_a_model_is_a_link_to_dvcs_object_when_the_next_stage_runs(root: Path) -> None:
    dvc(root, "repro")
    found = (root / "reports/index.html").read_text()
    assert found == "[1, 2]", "of config.json and the weights: how many names each has"
    assert "up to date" in dvc(root, "repro"), "DVC takes the link for what it recorded"
    assert "up to date" in dvc(root, "status")
    assert [path.name for path in (root / "models").iterdir()] == ["base"]

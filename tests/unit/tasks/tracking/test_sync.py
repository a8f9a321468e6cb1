"""`make sync`: which runs it counts as arrived, and how it ends."""

from pathlib import Path

import pytest

from tasks.sync import main
from tasks.tracking.sent import load_sent, save_sent
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.spool import RunStart, open_spool, read_finish


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose run has arrived, a variant whose run has, and one that is still running."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    variant = tmp_path / ".work/variants/no_kl"
    for place, stage in ((tmp_path, "sft"), (variant, "ppo@r1")):
        place.mkdir(parents=True, exist_ok=True)
        (place / "dvc.yaml").touch()
        spool = open_spool(place, RunStart(stage, "e", params={}, inputs={}, tags={}))
        spool.finish("FINISHED", {}, [])
        finish = read_finish(spool.folder)
        assert finish is not None
        arrived(place, spool.folder, "FINISHED", finish["ended_ms"])
    return tmp_path


def arrived(root: Path, folder: Path, status: str, ended_ms: int = 0) -> None:
    sent = load_sent(folder, tracking_uri(root))
    sent.run, sent.described, sent.models_done = "0a", True, ended_ms > 0
    sent.status, sent.ended_ms = status, ended_ms
    save_sent(folder, sent)


def test_runs_of_variants_count_and_one_that_still_runs_does_not(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = open_spool(root, RunStart("reward@r1", "e", params={}, inputs={}, tags={}))
    arrived(root, running.folder, "RUNNING")

    assert main([]) == 0

    assert capsys.readouterr().out == "2 runs are in MLflow, 0 newly tagged with output hashes.\n"
    running.finish("FINISHED", {}, [])


def test_a_damaged_dvc_lock_is_named_and_ends_it_with_2(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "dvc.lock").write_text("<<<<<<< HEAD\nstages: {}\n")

    assert main([]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{root}/dvc.lock: not valid YAML")
    assert said.err.count("\n") == 1

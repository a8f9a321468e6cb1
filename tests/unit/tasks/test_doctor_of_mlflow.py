"""`make doctor` on what has not arrived in MLflow: named, sent, and never called sent otherwise."""

from pathlib import Path

import pytest

from tasks.doctor import main
from tasks.tracking.sent import load_sent, save_sent
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.spool import RunStart, Spool, open_spool, read_finish
from tasks.workspace.files import write_json
from tasks.workspace.work_folder import note_running
from tests import doctor_world
from tests.doctor_world import doctor

root = pytest.fixture(doctor_world.root)


def ended(root: Path, stage: str) -> Spool:
    spool = open_spool(root, RunStart(stage, "e", params={}, inputs={}, tags={}))
    spool.finish("FINISHED", {}, [])
    return spool


def test_runs_that_have_not_arrived_are_named_by_their_stages(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "none.db").touch()
    for stage in ("sft", "ppo@r1"):
        ended(root, stage)
    arrived = ended(root, "base")
    sent, finish = load_sent(arrived.folder, tracking_uri(root)), read_finish(arrived.folder)
    assert finish is not None
    sent.run, sent.described, sent.models_done = "0a", True, True
    sent.ended_ms = finish["ended_ms"]
    save_sent(arrived.folder, sent)

    assert doctor(capsys) == (1, [
        "left   2 runs are not complete in MLflow, or shown as running: ppo@r1, sft: "
        "make doctor FIX=1",
        "0 fixed, 1 left.",
    ])  # fmt: skip


def test_the_executions_of_a_run_at_work_are_left_to_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It sends them itself, and has not sent the last one yet."""
    folder = root / ".work/executions/20261128-x"
    folder.mkdir(parents=True)
    write_json(folder / "rounds.json", {"recorded_ms": 1})
    assert doctor(capsys)[0] == 1

    note_running(root / ".work/sft", "sft", "20261128-x")

    code, said = doctor(capsys)
    assert (code, said[-1]) == (0, "All is well.")


def test_what_cannot_be_sent_is_not_called_sent_but_left_with_the_reason(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged note of what has arrived: nobody can say whether the run is there."""
    spool = ended(root, "sft")
    (spool.folder / "sent.json").write_text("{half a fi")
    problem = "1 run is not complete in MLflow, or shown as running: sft"
    assert doctor(capsys)[1][0] == f"left   {problem}: make doctor FIX=1"

    assert main(["--fix"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"left   {problem}: make doctor FIX=1",
        "0 fixed, 1 left.",
    ]
    assert said.err.startswith(f"{problem}: {spool.folder}: cannot be read (JSONDecodeError: ")

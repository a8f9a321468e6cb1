"""`make doctor` beside runs that work, wait or have broken off: their `dvc.lock` is not yet theirs.

A variant or an ordered run starts with the entries of its checkout.
"""

import shutil
from pathlib import Path

import pytest

from rlhf.manifests import describe_files, write_manifest
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.execution import begin_execution, save_execution
from tasks.workspace.work_folder import note_running
from tests import doctor_world
from tests.doctor_world import doctor

root = pytest.fixture(doctor_world.root)
variant = pytest.fixture(doctor_world.variant)
AT_WORK = "a run is at work: its outputs were not compared with dvc.lock"


def test_outputs_of_a_run_at_work_are_not_compared(root: Path, variant: Path, capsys):
    """The checkout has lost one, and the variant has another content."""
    shutil.rmtree(root / "results/sft")
    (variant / "results/sft/a.txt").write_text("half of it")
    code, said = doctor(capsys)
    assert (code, len(said)) == (1, 3)

    with sole_use(root, Driver(name="one")), sole_use(variant, Driver(name="other")):
        code, said = doctor(capsys)

    names = ["", f"{variant.relative_to(root)}: "]
    assert said == [*(f"note   {name}{AT_WORK}" for name in names), "All is well."]
    assert code == 0


def test_a_stage_of_a_bare_dvc_repro_is_a_run_at_work(root: Path, capsys):
    (root / "results/sft/a.txt").write_text("half of it")
    note_running(root / ".work/sft", "sft", "run-7")

    assert doctor(capsys) == (0, [f"note   {AT_WORK}", "All is well."])


def test_a_run_that_came_to_no_end_is_not_told_to_fetch_what_its_checkout_made(
    root: Path, variant: Path, capsys
):
    shutil.rmtree(variant / "results/sft")
    execution = begin_execution(variant)
    name = variant.relative_to(root)

    assert doctor(capsys) == (0, [
        f"note   {name}: the run has not come to its end and does not have results/sft: "
        "it goes on there",
        "All is well.",
    ])  # fmt: skip

    execution.unfinished = False
    save_execution(variant, execution)
    code, said = doctor(capsys)
    assert code == 0
    assert said[0].startswith(f"note   {name}: in dvc.lock, but not here: results/sft (to get ")


def test_the_checkout_itself_may_fetch_what_an_unfinished_run_has_removed(root: Path, capsys):
    shutil.rmtree(root / "results/sft")
    begin_execution(root)

    _, said = doctor(capsys)

    assert said[0].startswith("note   in dvc.lock, but not here: results/sft (to get them: dvc ")


def test_what_a_stage_at_work_is_still_writing_stays(root: Path, capsys):
    """Its outputs and its checkpoint look unfinished and damaged, which they are no longer soon."""
    work = root / ".work/sft"
    half = work / "0123456789abcdef/step-00000002/state.json"
    written = [
        half,
        work / "staging/model.safetensors",
        work / "0123456789abcdef/.staging/state.json",
        root / "models/.sft.publishing/model.safetensors",
    ]
    for path in written:
        path.parent.mkdir(parents=True)
        path.write_text("half of i")
    note_running(work, "sft", "run-7")

    assert doctor(capsys, "--fix") == (0, [f"note   {AT_WORK}", "All is well."])

    assert [path.read_text() for path in written] == ["half of i"] * 4
    (work / "running.json").unlink()
    assert doctor(capsys, "--fix")[1][-1] == "4 fixed, 0 left."
    assert not any(path.exists() for path in written)


def test_of_a_stage_that_died_the_note_goes_and_the_checkpoint_stays(root: Path, capsys):
    work = root / ".work/sft"
    checkpoint = work / "0123456789abcdef/step-00000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    write_manifest(checkpoint, {"files": describe_files(checkpoint)})
    note_running(work, "sft", "run-7")
    note = work / "running.json"
    note.write_text(note.read_text().replace('"boot": "', '"boot": "another'))

    code, said = doctor(capsys, "--fix")

    assert (code, said[-1]) == (0, "1 fixed, 0 left.")
    assert said[0].endswith("recorded; run it again to resume")
    assert (note.exists(), (checkpoint / "state.json").exists()) == (False, True)

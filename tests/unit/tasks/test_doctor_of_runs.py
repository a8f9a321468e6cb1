"""`make doctor` beside runs that work, wait or have broken off: their `dvc.lock` is not yet theirs.

A variant or an ordered run starts with the entries of its checkout.
"""

import shutil
from pathlib import Path

import pytest

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

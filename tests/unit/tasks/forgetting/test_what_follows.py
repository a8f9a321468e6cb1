"""After a withdrawal nothing recommends to fetch again what is gone, and no empty folder stays."""

import json
from pathlib import Path

import pytest

from preferences.withdrawals import WITHDRAWN_JUDGMENTS
from tasks import doctor, lineage
from tasks.forget import main
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.withdrawn import LOG
from tests.git_command import git
from tests.traced_world import World, object_path
from tests.unit.tasks.forgetting.conftest import workspace

PREPARED = "data/prepared"


def check_out(folder: Path, world: World, *outputs: str) -> None:
    """Outputs from the cache, as DVC would bring them."""
    for output in outputs:
        digest = world.now[output][0]
        files = {"": digest}
        if digest.endswith(".dir"):
            listed = json.loads(object_path(world.root, digest).read_text())
            files = {f"/{one['relpath']}": one["md5"] for one in listed}
        for name, md5 in files.items():
            path = folder / f"{output}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(object_path(world.root, md5).read_bytes())


@pytest.fixture
def whole(world: World) -> World:
    """With all outputs here."""
    (world.root / "dvc.yaml").write_text("stages: {}\n")
    check_out(world.root, world, *(one for one in world.now if not one.endswith("d/preferences")))
    return world


def notes(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert doctor.main(list(arguments)) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]


def test_doctor_sends_nobody_to_the_remote_for_what_was_withdrawn(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert notes(capsys) == []
    assert main(["--annotator", "ann", "--yes"]) == 0
    (whole.root / "models/sft/m").unlink()
    (whole.root / "models/sft").rmdir()

    # Ann's judgments, and what was made of them; a model is no problem of this kind.
    assert notes(capsys) == [
        "note   something was withdrawn from data/rounds/r1/judgments.jsonl and 1 more: make repro "
        "makes that anew (a dvc pull before may bring back what was withdrawn)",
        "note   in dvc.lock, but not here: models/sft (to get them: make repro)",
    ]


def test_doctor_says_so_of_a_folder_that_has_lost_a_file_and_of_the_workspace_of_a_run(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    check_out(workspace(whole, "runs/mine", whole.commit_hash()), whole, PREPARED)
    assert main(["--matching", "Kim", "--yes"]) == 0
    assert (whole.root / PREPARED / "corpus.jsonl").exists()
    assert not (whole.root / PREPARED / "demonstrations.jsonl").exists()

    here, there = [line for line in notes(capsys) if "withdrawn from" in line]
    assert here.startswith(f"note   something was withdrawn from {PREPARED} and ")
    assert there.startswith(f"note   .work/runs/mine: something was withdrawn from {PREPARED} and ")
    assert ": the next run makes that anew (" in there


def test_another_clone_knows_it_by_the_log_alone(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has neither the outputs nor DVC's lists of what was in them."""
    assert main(["--matching", "Kim", "--yes"]) == 0
    object_path(whole.root, whole.now[PREPARED][0]).unlink()

    assert any(f"withdrawn from {PREPARED} and " in line for line in notes(capsys))


def test_what_a_pull_has_brought_back_is_named_until_it_is_forgotten_again(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a clone that had the data before it got the log by git."""
    judgments = object_path(whole.root, whole.now["data/rounds/r1/judgments.jsonl"][0])
    content = judgments.read_bytes()
    assert main(["--annotator", "ann", "--yes"]) == 0
    assert not any("names as removed" in line for line in notes(capsys))
    judgments.write_bytes(content)

    (back,) = [line for line in notes(capsys) if "names as removed" in line]
    assert back.startswith(f"note   DVC's cache has 1 object that {LOG} names as removed, ")
    with sole_use(whole.root, Driver(name="a run at work")):
        assert back in notes(capsys)

    assert main(["--annotator", "ann", "--yes"]) == 0
    assert not any("names as removed" in line for line in notes(capsys))


def test_an_older_commit_knows_what_was_withdrawn_since_on_any_branch(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own tombstones the next run would make again what was withdrawn."""
    older = whole.commit_hash()
    whole.switch("withdrawing")
    assert main(["--annotator", "ann", "--yes"]) == 0
    for name in (LOG, WITHDRAWN_JUDGMENTS):
        git(whole.root, "add", "--force", name)
    git(whole.root, "commit", "--quiet", "-m", "Withdraw")
    commit = git(whole.root, "rev-parse", "--short=9", "HEAD")
    whole.switch(older)
    assert not (whole.root / LOG).exists()

    (note,) = notes(capsys)
    assert note.startswith("note   something was withdrawn from data/rounds/r1/judgments.jsonl and")
    assert f": git checkout {commit} -- data/withdrawn, then make repro makes that anew (" in note

    git(whole.root, "checkout", commit, "--", "data/withdrawn")
    (note,) = notes(capsys)
    assert "1 more: make repro makes that anew (" in note


def test_a_damaged_log_is_a_problem_of_one_line(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole.root / LOG).parent.mkdir(parents=True)
    (whole.root / LOG).write_text("who?\n")

    assert doctor.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"left   {whole.root / LOG}:1: expected what `python -m tasks.forget` writes, found "
        "'who?': mend it; git has what has been committed of it",
        "0 fixed, 1 left.",
    ]


def test_folders_that_lose_their_last_file_go_and_those_that_have_one_stay(whole: World) -> None:
    kept = whole.root / "data/rounds/r2/.gitignore"
    kept.write_text("/judgments.jsonl\n")

    assert main(["--annotator", "ann", "--yes"]) == 0
    assert main(["--annotator", "bob", "--yes"]) == 0

    empty = [path for path in (whole.root / "data").rglob("*") if path.is_dir()]
    assert [path for path in empty if not any(path.iterdir())] == []
    assert kept.exists()


def test_lineage_does_not_send_anybody_there_either(
    whole: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--annotator", "ann", "--yes"]) == 0
    capsys.readouterr()

    lineage.main(["--annotator", "bob"])

    said = capsys.readouterr().err
    assert f"it had what was withdrawn since (see {LOG})" in said
    assert "fetch" not in said

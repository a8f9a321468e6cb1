"""`tasks.forget` beside others, and where something keeps it from its work."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from feedback.store import accounts
from feedback.store.database import Database
from preferences.withdrawals import WITHDRAWN_JUDGMENTS
from tasks.forget import main
from tasks.workspace.driver_lock import WorkspaceBusyError, refuse_if_busy
from tests.traced_world import World, object_path
from tests.unit.tasks.forgetting.conftest import everything
from tests.variant_workspaces import prepare_workspace
from tests.waiting import eventually


def is_busy(root: Path) -> bool:
    """Whether a run would be refused, after some waiting for the contrary."""
    time.sleep(0.05)
    try:
        refuse_if_busy(root)
    except WorkspaceBusyError:
        return True
    return False


def test_no_run_can_begin_while_it_removes(world: World) -> None:
    """It waits for the labelling store here, which somebody else writes to."""
    store = world.root / ".work/feedback/feedback.db"
    database = Database(store)
    with database.writing() as connection:
        accounts.new_token(connection, "ann")
    database.close()
    writing = sqlite3.connect(store, check_same_thread=False)
    writing.execute("BEGIN IMMEDIATE")
    codes: list[int] = []
    forgetting = threading.Thread(
        target=lambda: codes.append(main(["--annotator", "ann", "--yes"]))
    )
    forgetting.start()
    try:
        assert eventually(lambda: is_busy(world.root) or not forgetting.is_alive())
        assert forgetting.is_alive()
    finally:
        writing.close()
        forgetting.join()
    assert codes == [0]
    refuse_if_busy(world.root)


def test_nothing_is_removed_where_mlflow_cannot_be_told(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    before = set(everything(world.root).items())

    assert main(["--annotator", "ann", "--yes"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("MLflow cannot be told which models contain it: ")
    assert said.endswith("; nothing was removed\n")
    assert said.count("\n") == 1
    assert before <= set(everything(world.root).items())


@pytest.mark.parametrize("arguments", [["--annotator", "a\udcff"], ["--matching", "\udcff"]])
def test_a_value_that_is_not_utf8_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2

    assert capsys.readouterr().err == (f"{arguments[0]}: expected UTF-8, found {arguments[1]!a}\n")


def test_damaged_tombstones_and_objects_are_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = object_path(world.root, world.now["data/prepared"][0])
    whole = listing.read_bytes()
    listing.write_bytes(whole[:20])
    assert main(["--annotator", "ann"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"data/prepared: its object {world.now['data/prepared'][0]} in DVC's cache is damaged ("
    )
    assert said.endswith("; `make doctor` looks for more\n")

    listing.write_bytes(whole)
    tombstones = Path(world.root / WITHDRAWN_JUDGMENTS)
    tombstones.parent.mkdir(parents=True)
    tombstones.write_bytes(b"\xff\n")
    assert main(["--annotator", "ann"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_params_of_a_workspace_that_are_not_valid_are_named_with_what_to_do(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left there by an older version, whose drivers wrote them before they looked."""
    (world.root / "params").mkdir()
    (world.root / "params/mine.yaml").write_text("ppo: {kl_coef: 0.2}\n")
    (world.root / "dvc.yaml").write_text("stages: {}\n")
    for name in ("params", "dvc.yaml", "params.yaml"):
        world.track(name)
    world.commit("variant")
    path = prepare_workspace(world.root, "mine") / "params.yaml"
    path.write_text(path.read_text().replace("kl_coef", "kl_coeff"))

    assert main(["--annotator", "ann"]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{path}: ppo.kl_coeff: unknown key")
    assert second == (
        "nothing was searched: run mine again, or remove what it made "
        f"(git worktree remove --force {path.parent})"
    )

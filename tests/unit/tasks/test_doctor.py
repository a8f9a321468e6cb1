"""`make doctor`: finds simulated damage, applies safe fixes, and names the command for the rest."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rlhf.manifests import describe_files, write_manifest
from tasks.doctor import main
from tasks.pruning.leftovers import checkpoints
from tasks.workspace.dvc_cache import output_hash
from tasks.workspace.files import write_json
from tasks.workspace.work_folder import Running, note_running, read_running
from tests import doctor_world
from tests.doctor_world import doctor, md5

root = pytest.fixture(doctor_world.root)
variant = pytest.fixture(doctor_world.variant)


def damage(root: Path, content: bytes) -> Path:
    """Damage the object of this content in the cache."""
    name = md5(content)
    cached = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    cached.chmod(0o644)
    cached.write_bytes(b"damaged")
    return cached


def test_a_sound_workspace_is_well(root: Path, capsys):
    assert doctor(capsys) == (0, ["All is well."])


@pytest.mark.parametrize("name", ["staging", "84f33e6aaaaaaaaa"])
def test_a_run_with_the_name_of_a_stages_own_folder_is_left_alone(root: Path, capsys, name: str):
    model = root / ".work/runs" / name / "models/precious.bin"
    model.parent.mkdir(parents=True)
    model.touch()
    (root / ".work/runs" / name / "step-1").mkdir()

    assert doctor(capsys, "--fix") == (0, ["All is well."])
    assert list(checkpoints(root, [root])) == []
    assert model.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("run:\n\tseed: 0\n", "params.yaml: "), (None, "params.yaml: "), ("run: {sed: 0}", "run.sed")],
)
def test_params_that_no_run_could_take_are_named(root: Path, capsys, text: str | None, said: str):
    (root / "params.yaml").unlink()
    if text is not None:
        (root / "params.yaml").write_text(text)

    code, lines = doctor(capsys)

    assert (code, lines[-1]) == (1, "0 fixed, 1 left.")
    assert lines[0].startswith("left   ")
    assert said in lines[0]


def test_params_of_a_variant_are_mended_where_they_come_from(root: Path, variant: Path, capsys):
    (variant / "params.yaml").write_text("run: {sed: 0}")

    code, lines = doctor(capsys)

    assert (code, len(lines)) == (1, 2)
    where = f"{variant.parent.name}/{variant.name}: {variant}/params.yaml: run.sed"
    assert where in lines[0]
    assert lines[0].endswith(f": mend params/{variant.name}.yaml or params.yaml")


@pytest.mark.parametrize("broken", [b"no database, but long enough to be read as one" * 99, None])
def test_a_damaged_store_of_mlflow_is_named(root: Path, capsys, broken: bytes | None):
    store = root / "none.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE experiments (creation_time INTEGER)")
        database.executemany("INSERT INTO experiments VALUES (?)", [(7,)] * 5000)
        database.commit()
    assert doctor(capsys) == (0, ["All is well."])
    # The second page, behind that with the table's description.
    content = store.read_bytes()
    store.write_bytes(broken or content[:4096] + bytes(4096) + content[8192:])
    code, said = doctor(capsys)
    assert (code, said[-1]) == (1, "0 fixed, 1 left.")
    assert said[0].startswith(f"left   {store}: MLflow's database is damaged (")
    assert "make sync" in said[0]


def test_a_folder_hashes_as_dvc_hashes_it(root: Path):
    (line,) = [x for x in (root / "dvc.lock").read_text().splitlines() if "results/sft" in x]
    assert output_hash(root / "results/sft") in line
    assert output_hash(root / "results/sft/a.txt") == md5(b"first")


def test_a_damaged_object_is_named_and_replaced_from_the_outputs(root: Path, capsys):
    name = md5(b"first")
    cached = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    cached.chmod(0o644)
    cached.write_bytes(b"fjrst")

    code, said = doctor(capsys)
    assert code == 1
    assert said == [
        f"left   {cached}: expected md5 {name}, found {md5(b'fjrst')}: make doctor FIX=1",
        "0 fixed, 1 left.",
    ]
    assert cached.read_bytes() == b"fjrst"
    code, said = doctor(capsys, "--fix")
    assert (code, said[-1]) == (0, "1 fixed, 0 left.")
    assert cached.read_bytes() == b"first"
    assert doctor(capsys) == (0, ["All is well."])


def test_a_damaged_object_that_nobody_has_is_removed(root: Path, capsys):
    name = md5(b"first")
    cached = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    cached.chmod(0o644)
    cached.write_bytes(b"")
    (root / "results/sft/a.txt").write_bytes(b"changed")

    code, said = doctor(capsys, "--fix")
    assert code == 1
    assert "removed; dvc pull or dvc repro brings it back" in said[0]
    assert not cached.exists()
    assert said[1].startswith("left   results/sft: differs from dvc.lock: expected md5 ")
    # The cache has no longer what a checkout would need.
    get = ": dvc pull results/sft or make repro (or dvc commit, if the change was intended)"
    assert said[1].endswith(get)


def test_where_object_and_output_are_damaged_no_checkout_is_recommended(root: Path, capsys):
    damage(root, b"first")
    (root / "results/sft/a.txt").write_bytes(b"changed")

    code, said = doctor(capsys)

    assert (code, len(said)) == (1, 3)
    assert said[1].endswith(
        ": dvc pull results/sft or make repro (or dvc commit, if the change was intended)"
    )


def test_an_output_that_the_cache_has_is_restored_by_a_checkout(root: Path, capsys):
    (root / "results/sft/a.txt").write_bytes(b"changed")

    code, said = doctor(capsys)

    assert code == 1
    assert said[0].endswith(
        ": dvc checkout --force results/sft (or dvc commit, if the change was intended)"
    )


def test_what_is_found_in_a_variant_names_it_and_its_commands_go_there(
    variant: Path, capsys: pytest.CaptureFixture[str]
):
    (variant / "results/sft/a.txt").write_bytes(b"changed")
    (variant / ".work/sft/staging").mkdir(parents=True)
    work = variant / ".work/sft/0123456789abcdef/step-00000003"
    work.mkdir(parents=True)
    (work / "state.json").write_text("{}")
    write_manifest(work, {"files": describe_files(work)})

    code, said = doctor(capsys)

    assert code == 1
    here = ".work/variants/other"
    assert f"left   {here}: .work/sft/staging: never finished: make doctor FIX=1" in said
    (differs,) = [line for line in said if "differs from dvc.lock" in line]
    assert differs.startswith(f"left   {here}: results/sft: differs from dvc.lock: ")
    assert f": cd {here} && dvc checkout --force results/sft (or" in differs
    same = "a run of the same params, inputs and code"
    assert f"note   {here}: sft is unfinished: {same} resumes from step 3" in said


def test_what_a_variant_lacks_is_a_note_that_names_it(variant: Path, capsys):
    shutil.rmtree(variant / "results")

    code, said = doctor(capsys)

    here = ".work/variants/other"
    assert (code, said) == (
        0,
        [
            f"note   {here}: in dvc.lock, but not here: results/sft "
            f"(to get them: cd {here} && dvc pull, dvc checkout or dvc repro)",
            "All is well.",
        ],
    )


def test_an_object_of_a_shared_cache_is_named_once_and_replaced_from_a_variant(
    root: Path, variant: Path, capsys
):
    cached = damage(root, b"first")
    (root / "results/sft/a.txt").write_bytes(b"changed")

    _, said = doctor(capsys)
    assert [line for line in said if str(cached) in line] == said[:1]

    _, said = doctor(capsys, "--fix")
    assert said[0].endswith(f"replaced by {variant}/results/sft/a.txt, which is intact")
    assert cached.read_bytes() == b"first"
    assert "dvc checkout --force results/sft" in said[1], "it works again"


def test_an_execution_of_which_mlflow_has_no_end_is_named_and_sent(
    root: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    folder = root / ".work/executions/20261128-x"
    folder.mkdir(parents=True)
    write_json(
        folder / "start.json",
        {"schema": 1, "execution": "20261128-x", "name": "default", "started_ms": 1, "params": {},
         "tags": {}},
    )  # fmt: skip
    write_json(
        folder / "end.json",
        {"status": "FINISHED", "ended_ms": 2, "message": "", "points": [], "inputs": []},
    )

    code, said = doctor(capsys)
    assert code == 1
    assert said[0] == (
        "left   1 execution is not complete in MLflow: 20261128-x: make doctor FIX=1"
    )
    assert doctor(capsys, "--fix")[0] == 0
    assert doctor(capsys) == (0, ["All is well."])


def test_a_damaged_dvc_lock_is_a_problem_that_hides_no_other(
    root: Path, variant: Path, capsys: pytest.CaptureFixture[str]
):
    for folder in (root, variant):
        lock = folder / "dvc.lock"
        lock.write_text(f"<<<<<<< HEAD\n{lock.read_text()}")
    cached = damage(root, b"first")
    (root / ".work/sft/staging").mkdir(parents=True)

    code, said = doctor(capsys)

    assert code == 1
    problem = (
        "dvc.lock: not valid YAML (line 1); is it a merge conflict? Then take one side whole "
        "(docs/how-to/upgrade.md):"
    )
    assert str(cached) in said[0]
    assert said[1:] == [
        "left   .work/sft/staging: never finished: make doctor FIX=1",
        f"left   {root}/{problem} git checkout HEAD -- dvc.lock",
        f"left   .work/variants/other: {variant}/{problem} cd .work/variants/other && "
        "git checkout HEAD -- dvc.lock",
        "0 fixed, 4 left.",
    ]


def test_an_emptied_dvc_lock_is_a_problem(
    root: Path, variant: Path, capsys: pytest.CaptureFixture[str]
):
    """DVC refuses it, and without its entries no output would differ from it."""
    for folder in (root, variant):
        (folder / "dvc.lock").write_bytes(b"")

    code, said = doctor(capsys)

    problem = "dvc.lock: empty, as a loss of power or a kill may leave it; "
    restore = "git checkout HEAD -- dvc.lock"
    assert code == 1
    assert said[0].startswith(f"left   {root}/{problem}")
    assert said[0].endswith(f": {restore}")
    assert said[1].startswith(f"left   .work/variants/other: {variant}/{problem}")
    assert said[1].endswith(f": cd .work/variants/other && {restore}")
    assert said[2:] == ["0 fixed, 2 left."]


def test_outside_a_repository_nothing_is_called_well(root: Path, capsys):
    (root / "dvc.yaml").unlink()

    assert main([]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{root}: no dvc.yaml here; run this from the repository root\n"


def test_an_output_that_is_not_here_is_a_note(root: Path, capsys):
    for path in sorted((root / "results").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "results").rmdir()

    code, said = doctor(capsys)
    assert code == 0
    assert said == [
        "note   in dvc.lock, but not here: results/sft (to get them: dvc pull, dvc checkout or "
        "make repro)",
        "All is well.",
    ]


def test_a_stage_that_died_is_distinguished_from_one_that_runs(root: Path, capsys):
    note_running(root / ".work/ppo@r1", "ppo@r1", "run-7")
    assert [running.alive for running in read_running(root)] == [True]
    code, said = doctor(capsys)
    assert (code, said[-1]) == (0, "All is well.")

    path = root / ".work/ppo@r1/running.json"
    record = json.loads(path.read_text())
    # The same number, another process: ours began later.
    path.write_text(json.dumps(record | {"ticks": record["ticks"] - 1}))
    code, said = doctor(capsys)
    assert code == 1
    assert said[0].startswith(f"left   ppo@r1 died silently (process {os.getpid()})")
    path.write_text(json.dumps(record | {"boot": "another"}))
    assert not Running(**json.loads(path.read_text())).alive
    assert doctor(capsys, "--fix")[0] == 0
    assert doctor(capsys) == (0, ["All is well."])


def test_unfinished_outputs_and_damaged_checkpoints_go_and_sound_ones_stay(root: Path, capsys):
    work = root / ".work/sft"
    for step in (1, 2):
        path = work / "0123456789abcdef" / f"step-{step:08d}"
        path.mkdir(parents=True)
        (path / "state.json").write_text("{}")
        write_manifest(path, {"files": describe_files(path)})
    (path / "state.json").write_text("[]")
    beside = root / "models/.sft.publishing"
    for draft in (work / "staging", work / "0123456789abcdef" / ".staging", beside):
        draft.mkdir(parents=True)

    code, said = doctor(capsys, "--fix")
    assert code == 0
    assert len([line for line in said if line.startswith("fixed")]) == 4
    assert any("step-00000002/state.json: expected sha256" in line for line in said)
    assert (
        "note   sft is unfinished: a run of the same params, inputs and code resumes from step 1"
        in said
    )
    assert [path.name for path in work.glob("*/step-*")] == ["step-00000001"]
    assert not (work / "staging").exists()
    assert not beside.exists()

"""The same run under its three names: a commit, a variant, a run of MLflow."""

import re
import shutil
from pathlib import Path

import matplotlib as mpl
import pytest

from tasks.compare import _rounds, main
from tasks.comparing.sides import Side, SideError, side, withdrawn
from tasks.forget import main as forget
from tasks.tracing.records import Ran
from tasks.tracking.sent import DEFAULT_STORE
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver
from tasks.workspace.runs import run_workspace
from tests.git_command import git
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.traced_world import START, World, after
from tests.unit.tasks.comparing.compared import metrics, samples, world_fixture  # noqa: F401
from tests.variant_workspaces import prepare_workspace

ROOT = Path(__file__).resolve().parents[4]


def test_two_commits_differ_in_params_data_and_results(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["first", "second"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["params:", "A", "B"] in lines
    assert ["policies:", "A", "B", "B", "-", "A"] in lines
    assert ["ppo.kl_coef", "0.04", "0.1"] in lines
    (judged,) = [line for line in lines if line[0] == "data/rounds/r1/judgments.jsonl"]
    assert judged[2:4] + judged[5:7] == ["4", "rows", "4", "rows"]
    assert not [line for line in lines if line[0] == "data/prepared"]
    assert ["r1", "gold", "4.000", "(3.000", "to", "5.000)",
            "6.500", "(5.500", "to", "7.500)", "+2.5"] in lines  # fmt: skip
    # 2, 3 and 1 on three prompts: mean 2, standard deviation 1; t(2) = 4.303 over the root of 3.
    assert ["r1", "gold,", "B", "-", "A", "on", "the", "same", "prompts:",
            "+2.00", "(-0.48", "to", "+4.48,", "3", "prompts)"] in lines  # fmt: skip
    assert (world.root / ".work/comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_commit_does_not_differ_from_itself_or_from_its_checkout(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["second", "."]) == 0

    said = capsys.readouterr().out
    for title in ("params", "data", "policies"):
        assert f"{title}: no difference\n" in said
    assert "reward models: not compared, nothing measured of A and B is here\n" in said


def test_what_ran_with_other_params_is_not_taken_for_the_sides_own(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    path = world.root / "params.yaml"
    path.write_text(path.read_text().replace("files: null", "files: {prompts: x}"))
    world.commit("edited")

    assert main(["second", "edited"]) == 0

    said = capsys.readouterr().out
    # And reward@r1, ppo@r1 and evaluate@r1.
    left_out = "prepare, base, sft, sample@r1, label@r1, validate@r1 and 3 more"
    assert f"\nB has not run with its params, so left out: {left_out}\n" in said
    assert "policies: not compared, nothing measured of B is here\n" in said
    assert said.endswith("\npicture: .work/comparison.png\n"), "of what is known"


def test_what_only_one_side_has_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The third commit has a second round."""
    world.round("r2", after("r1"), ["ann"], "third")
    world.measure("r2", {"metrics.json": metrics(7.0)})
    world.commit("third")

    assert main(["second", "third"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (judged,) = [line for line in lines if line[0] == "data/rounds/r2/judgments.jsonl"]
    assert judged[1] == "-"
    assert judged[3:] == ["4", "rows"]
    assert ["r2", "gold", "-", "7.000", "(6.000", "to", "8.000)"] in lines


@pytest.mark.long
def test_a_side_that_used_data_withdrawn_since_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ann judged the round of the first commit, and bob that of the last."""
    world.round("r1", START, ["bob"], "third")
    world.measure("r1", {"metrics.json": metrics(7.0)})
    world.commit("third")
    assert main(["first", "third"]) == 0
    assert "withdrawn" not in capsys.readouterr().out
    assert forget(["--annotator", "ann", "--yes"]) == 0
    capsys.readouterr()

    assert main(["first", "third"]) == 0

    (said,) = [line for line in capsys.readouterr().out.splitlines() if "log.jsonl" in line]
    note, _, paths = said.partition("log.jsonl: ")
    assert note == "A contains withdrawn data, see data/withdrawn/"
    assert {"data/rounds/r1/judgments.jsonl", "models/rounds/r1/reward"} <= set(paths.split(", "))
    # MLflow knows of a run only what it ran itself, and that has read it.
    path = "data/rounds/r1/judgments.jsonl"
    (validated,) = (ran for ran in side(world.root, "first").runs if ran.stage == "validate@r1")
    ran = Ran("validate@r1", {path: validated.deps[path]}, {}, {})
    alone = Side("a", "run", "c", world.root, {}, True, (ran,))
    assert withdrawn(world.root, alone) == [path]


def test_files_of_code_that_only_one_side_has_are_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, deps in (("one", {"rlhf/gone.py": "x"}), ("other", {"rlhf/new.py": "x"})):
        world.measure("r1", {"metrics.json": metrics(6.5)}, deps | {"rlhf/same.py": "x"})
        world.commit(name)

    assert main(["one", "other"]) == 0

    said = capsys.readouterr().out
    assert "code: 2 files differ: rlhf/gone.py (only A), rlhf/new.py (only B)\n" in said


def test_measurements_that_are_not_here_are_not_called_equal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(world.root / ".dvc/cache")

    assert main(["first", "second"]) == 0

    said = capsys.readouterr().out
    assert "policies: not compared, nothing measured of A and B is here\n" in said
    assert "not on this machine (`dvc fetch --all-commits`): first: results/evaluate/r1" in said


def test_a_run_of_mlflow_is_found_by_id_name_and_execution(world: World) -> None:
    store = connect(tracking_uri(world.root))
    tags = {
        "mlflow.runName": "2026-11-23 no_kl, 1 round",
        "rlhf.execution": "20261123-x",
        "git.commit": "abc",
    }
    whole = store.client.create_run(store.experiment, tags=tags)
    store.client.log_param(whole.info.run_id, "ppo.kl_coef", "0.7")
    # Sent in another order than they ran in: of the two the one that ran last counts.
    for started, digest in ((7_000, "new.dir"), (5_000, "old.dir")):
        stage = store.client.create_run(
            store.experiment,
            start_time=started,
            tags={
                "mlflow.parentRunId": whole.info.run_id,
                "rlhf.stage": "prepare",
                "dvc.out.data/prepared": digest,
                "dvc.in.data/x": "in",
            },
        )

    with pytest.raises(SideError, match=r"^it's mine: no commit, no run in MLflow "):
        side(world.root, "it's mine")
    # Prefect's name has no date; `_` stands for itself.
    near = {"mlflow.runName": "2026-11-24 no-kl, 1 round", "git.commit": "near"}
    store.client.create_run(store.experiment, tags=near)
    dated = "2026-11-23 no_kl, 1 round"
    of_stage = stage.info.run_id
    for name in (whole.info.run_id, dated, "no_kl, 1 round", "20261123-x", of_stage):
        found = side(world.root, name)
        assert (found.kind, found.commit, found.complete) == ("run", "abc", True)
        assert found.params == {"ppo.kl_coef": "0.7"}
        (ran,) = found.runs
        assert (ran.stage, dict(ran.deps)) == ("prepare", {"data/x": "in"})
        assert ran.outs == {"data/prepared": "new.dir"}


def test_a_run_in_the_checkouts_own_store_is_found_where_no_other_is_named(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = connect(tracking_uri(world.root)).client.create_run("0", run_name="mine")
    own = world.root / DEFAULT_STORE
    own.parent.mkdir(parents=True)
    shutil.copy(database.removeprefix("sqlite:///"), own)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")

    assert side(world.root, run.info.run_id).kind == "run"


def test_a_variant_is_a_side_and_code_that_its_stages_used_in_another_version_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    code = {"rlhf/gold.py": "old", "rlhf/same.py": "same"}
    files = {"metrics.json": metrics(6.5), "samples.jsonl": samples([5, 7, 6])}
    world.measure("r1", files, code)
    (world.root / "dvc.yaml").write_text("stages: {}\n")
    (world.root / "params").mkdir()
    (world.root / "params/other.yaml").write_text("ppo: {kl_coef: 0.7}\n")
    for name in ("dvc.yaml", "params"):
        world.track(name)
    commit = world.commit("third")
    recorded = (world.root / "dvc.lock").read_text()
    # The variant has run with other code, and has come to another policy.
    workspace = prepare_workspace(world.root, "other")
    files = {"metrics.json": metrics(8.0), "samples.jsonl": samples([6, 9, 9])}
    world.measure("r1", files, {**code, "rlhf/gold.py": "new"})
    (world.root / "dvc.lock").replace(workspace / "dvc.lock")
    (world.root / "dvc.lock").write_text(recorded)

    with mpl.rc_context({"svg.fonttype": "none"}):
        assert main(["third", "other", "--out", "both.svg"]) == 0

    legend = re.findall(r">([AB]: [a-z]+)<", (world.root / "both.svg").read_text())
    assert set(legend) == {"A: third", "B: other"}
    said = capsys.readouterr().out
    assert f"A: third (commit {commit[:9]})\nB: other (variant, commit {commit[:9]})" in said
    assert "code: 1 file differs: rlhf/gold.py\n" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["ppo.kl_coef", "0.1", "0.7"] in lines
    assert ["r1", "gold", "6.500", "(5.500", "to", "7.500)",
            "8.000", "(7.000", "to", "9.000)", "+1.5"] in lines  # fmt: skip
    # 1, 2 and 3 on three prompts: mean 2, standard deviation 1; t(2) = 4.303 over the root of 3.
    assert ["r1", "gold,", "B", "-", "A", "on", "the", "same", "prompts:",
            "+2.00", "(-0.48", "to", "+4.48,", "3", "prompts)"] in lines  # fmt: skip


@pytest.mark.parametrize("pruned", [False, True])
def test_an_ordered_run_is_a_side_by_its_name(
    world: World, capsys: pytest.CaptureFixture[str], *, pruned: bool
) -> None:
    """Its branch is called runs/NAME, and stays where `tasks.prune` removes its workspace."""
    (world.root / "dvc.yaml").write_text("stages: {}\n")
    world.track("dvc.yaml")
    commit = world.commit("third")
    with run_workspace(world.root, "sweep-1", None, Choices(), Driver(name="me")) as (workspace, _):
        assert git(workspace, "rev-parse", "HEAD") == commit
    git(workspace, "commit", "--quiet", "--allow-empty", "-m", "End")
    commit = git(workspace, "rev-parse", "HEAD")
    if pruned:
        git(world.root, "worktree", "remove", "--force", str(workspace))

    assert main(["third", "sweep-1"]) == 0

    said = capsys.readouterr().out
    assert f"\nB: sweep-1 (ordered run, commit {commit[:9]})\n" in said
    assert "\npolicies: no difference\n" in said


def test_where_mlflow_knows_no_code_the_commits_say_which_files_differ(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("rlhf/gold.py", "rlhf/same.py", "rlhf/gone.py", "tests/test_gold.py"):
        (world.root / path).parent.mkdir(exist_ok=True)
        (world.root / path).write_text("old")
        world.track(path)
    before = world.commit("before")
    for path in ("rlhf/gold.py", "tests/test_gold.py"):
        (world.root / path).write_text("new")
    world.commit("after")
    store = connect(tracking_uri(world.root))
    tags = {"mlflow.runName": "2026-11-23 old", "git.commit": before}
    store.client.create_run(store.experiment, tags=tags)

    assert main(["2026-11-23 old", "after"]) == 0

    said = capsys.readouterr().out
    assert "code: 1 file differs: rlhf/gold.py\n" in said
    # What stages that were not the run's own have written, is not known of it.
    assert "data: not compared, MLflow names only what a run made itself: here nothing" in said

    # A commit knows what its stages used: the command beside them did not change the outputs.
    (world.root / "rlhf/gold.py").write_text("newer")
    (world.root / "rlhf/gone.py").unlink()
    (world.root / "tasks").mkdir()
    (world.root / "tasks/doctor.py").write_text("new")
    world.track("tasks/doctor.py")
    files = {"metrics.json": metrics(6.5)}
    world.measure("r1", files, {"rlhf/gold.py": "newer", "rlhf/same.py": "old"})
    world.commit("last")

    assert main(["2026-11-23 old", "last"]) == 0

    assert "code: 2 files differ: rlhf/gold.py, rlhf/gone.py\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"git.commit": "d" * 40}, "commit ddddddddd is not here"),
        ({}, "of A no commit is known"),
    ],
)
def test_code_of_a_commit_that_is_not_in_this_clone_is_not_called_equal(
    world: World, capsys: pytest.CaptureFixture[str], tags: dict[str, str], reason: str
) -> None:
    store = connect(tracking_uri(world.root))
    run = store.client.create_run(store.experiment, tags=tags)

    assert main([run.info.run_id, "second"]) == 0

    assert f"code: not compared, {reason}\n" in capsys.readouterr().out


def test_a_measure_that_a_side_could_not_take_is_absent(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of SFT no reward model says anything: the mean of its proxy is null."""
    null = metrics(4.0).replace('"proxy": {"mean": 1.0}', '"proxy": {"mean": null}')
    for name, text in (("null", null), ("number", metrics(4.0))):
        world.measure("r1", {"metrics.json": text})
        world.commit(name)

    assert main(["null", "number"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r1", "proxy", "-", "1"] in lines


def test_a_policy_of_one_side_alone_may_lack_a_mean(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.round("r2", after("r1"), ["ann"], "third")
    null = metrics(7.0).replace('"proxy": {"mean": 1.0}', '"proxy": {"mean": null}')
    world.measure("r2", {"metrics.json": null})
    world.commit("third")

    assert main(["second", "third"]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r2", "gold", "-", "7.000", "(6.000", "to", "8.000)"] in lines
    assert not [line for line in lines if line[:2] == ["r2", "proxy"]]


def test_rounds_are_in_the_order_of_their_params_and_unknown_ones_behind() -> None:
    """Not in that of the length of their names."""
    ran = tuple(Ran(f"ppo@{key}", {}, {}, {}) for key in ("main", "r3", "warmup", "r12", "r4"))
    ran = (Ran("sft", {}, {}, {}), *ran)
    params = {f"rounds.{key}.policy": "models/sft" for key in ("warmup", "main", "r3", "later")}
    of_commit = Side("a", "commit", "c", Path(), params, False, ran)
    of_mlflow = Side("b", "run", "c", Path(), {"rounds": "warmup r12 main"}, True, ran)

    assert _rounds((of_commit, of_commit)) == ["warmup", "main", "r3", "r4", "r12"]
    assert _rounds((of_mlflow, of_mlflow)) == ["warmup", "r12", "main", "r3", "r4"]

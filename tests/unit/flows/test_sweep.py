"""What a sweep refuses before its first run, in a real git repository, and the table at its end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.starts import common_start
from flows.sweep import final_figures, final_judge, judged_by, paired_rows, refusals, sweep
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver
from tasks.workspace.runs import TRIAL, run_workspace
from tasks.workspace.worktrees import RUNS_FOLDER, worktree_git

ROOT = Path(__file__).resolve().parents[3]


def test_differences_are_paired_by_seed_with_students_interval():
    base = {0: {"gold": 5.0, "kl": 3.0}, 1: {"gold": 7.0, "kl": 3.0}, 2: {"gold": 6.0}}
    kl = {0: {"gold": 5.5, "kl": 2.0}, 1: {"gold": 8.5, "kl": 2.5}, 2: {"gold": 6.1}}
    one = {1: {"gold": 6.0, "kl": 4.0}}
    rows = paired_rows({"base": base, "kl010": kl, "one": one, "none": {}})
    # Differences 0.5, 1.5, 0.1: mean 0.7, s = 0.72111; t(2) = 4.30265; half = 1.79135.
    # KL: -1.0, -0.5: mean -0.75, s = 0.353553; t(1) = 12.7062; half = 3.17655.
    assert rows == [
        row("base", "3", gold="6.000", kl="3.000"),
        row("kl010", "3", gold="6.700", kl="2.250",
            gold_from="+0.700 [-1.091, +2.491]", kl_from="-0.750 [-3.927, +2.427]"),
        row("one", "1", gold="6.000", kl="4.000", gold_from="-1.000", kl_from="+1.000"),
        row("none", "0"),
    ]  # fmt: skip


def row(change: str, seeds: str, **cells: str) -> dict[str, str]:
    return {
        "change": change,
        "seeds": seeds,
        "gold score (of 10)": cells.get("gold", "-"),
        "gold score (of 10), difference": cells.get("gold_from", "-"),
        "win rate vs SFT": "-",
        "win rate vs SFT, difference": "-",
        "KL to SFT": cells.get("kl", "-"),
        "KL to SFT, difference": cells.get("kl_from", "-"),
    }


def test_a_difference_that_rounds_to_nothing_has_no_minus():
    base, other = {0: {"gold": 8.0}}, {0: {"gold": 8.0 - 1e-5}}
    (_, same) = paired_rows({"base": base, "same": other})
    assert same["gold score (of 10), difference"] == "+0.000"


def test_the_figures_of_a_run_are_those_of_its_final_policy(tmp_path: Path):
    for name, gold in (("baseline", 5.0), ("evaluate/r1", 7.5), ("evaluate/r3", 6.0)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"gold": {"mean": gold}}))
    text = (ROOT / "params.yaml").read_text()
    for final, figures in (("r1", {"gold": 7.5}), ("r3", {"gold": 6.0}), ("r2", {})):
        (tmp_path / "params.yaml").write_text(text.replace("final: r3", f"final: {final}"))
        assert final_figures(tmp_path) == figures


def test_the_table_says_where_each_run_was_judged_by_a_reward_model_of_its_own(tmp_path: Path):
    folder = tmp_path / "results/evaluate/r3"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    said = {}
    for judge in ("gold", "rules", "label.language_model", "reward_model", "mixed_reward", None):
        wins = {"gold": None, "win_rate_vs_sft": {"mean": 0.7}, "win_rate_judge": judge}
        (folder / "metrics.json").write_text(json.dumps(wins))
        assert final_judge(tmp_path) == judge
        said[judge] = judged_by({judge, "gold"})
    assert {judge for judge, words in said.items() if words} == {"reward_model", "mixed_reward"}
    assert "differences do not tell which policy is better" in said["reward_model"]


OVERRIDES = {"kl010": {"ppo.kl_coef": 0.1}, "slow": {"ppo.optimiser.lr": 1e-5}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, as the flow finds it in its working directory."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "params", root / "params")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, root)
    (root / ".gitignore").write_text("/.work/\n")
    worktree_git(root, "init", "--quiet", "--initial-branch=main")
    worktree_git(root, "add", "--all")
    worktree_git(root, "commit", "--quiet", "-m", "one")
    monkeypatch.chdir(root)
    return root


def order(**form: Any) -> State[None]:
    """The flow's own function, which needs no server until its first run starts."""
    return sweep.fn(**{"name": "mine", "overrides": OVERRIDES, "seeds": [0, 1]} | form)


def left(root: Path) -> tuple[list[Path], str, str]:
    """Workspaces, worktrees and branches beside the checkout's own."""
    files = [path for path in (root / ".work").rglob("*") if path.name != ".lock"]
    folders = [path for path in files if path != root / RUNS_FOLDER]
    others = worktree_git(root, "worktree", "list").partition("\n")[2]
    return folders, others, worktree_git(root, "branch", "--list", "runs/*")


WRONG: dict[str, dict[str, Any]] = {
    "overrides.typo: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?": {
        "overrides": {**OVERRIDES, "typo": {"ppo.kl_coeff": 0.1}}
    },
    "overrides.far: run.threads: input should be greater than or equal to 1, found 0\n"
    "overrides.typo: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?": {
        "overrides": {"far": {"run.threads": 0}, "typo": {"ppo.kl_coeff": 0.1}}
    },
    "revision: no branch, tag or commit 'nowhere' here (`git fetch` gets those of others)": {
        "revision": "nowhere"
    },
    "recipe: no variant or preset 'nokl'; there are: frozen_reward, no_kl, no_kl_frozen, seed1, "
    "seed2, 1b-gpu, 8b-lora-gpu, smollm2-135m": {"recipe": "nokl"},
    "overrides.other: run.seed is what the field `seeds` sets; leave out one of the two": {
        "overrides": {**OVERRIDES, "other": {"run.seed": 7}}
    },
    "overrides.base: the runs without any change are called so; choose another name": {
        "overrides": {"base": {"ppo.kl_coef": 0.1}}
    },
    f"overrides.{'l' * 40}: name: {'n' * 33}-{'l' * 40}-seed10 has more than 80 characters; choose "
    "a shorter one": {"name": "n" * 33, "overrides": {"l" * 40: {}}, "seeds": [1, 10]},
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_with_any_run_is_said_before_the_first_and_leaves_nothing(
    root: Path, said: str
):
    state = order(**WRONG[said])
    assert (state.name, state.message) == ("BadInput", said)
    assert left(root) == ([], "", "")


def test_a_sweep_that_is_right_is_not_refused_and_has_made_nothing_yet(root: Path):
    common = Choices(recipe="no_kl", rounds=4)
    assert refusals(root, "mine", "main", common, OVERRIDES, [0, 1]) == []
    assert left(root) == ([], "", "")


@pytest.mark.long
def test_a_known_run_of_a_later_seed_is_tried_on_its_own_settings_and_stays_as_it_is(root: Path):
    driver, slow = Driver(name="test"), Choices(values={"ppo.optimiser.lr": 1e-5})
    with run_workspace(root, "mine-slow-seed1", None, slow, driver) as (workspace, _):
        pass
    # As a run of an older revision: what the checkout knows by now, it does not.
    path = workspace / "params.yaml"
    path.write_text(path.read_text().replace("run:\n", "run:\n  old: 1\n", 1))
    before, edited = left(root), path.read_bytes()

    assert refusals(root, "mine", "", Choices(), OVERRIDES, [0, 1]) == [
        "overrides.slow: run.old: unknown key; known: seed, threads, processes, sharded, device, "
        "precision, stored_precision, generation, bits"
    ]
    assert path.read_bytes() == edited
    assert left(root) == before
    worktree_git(root, "commit", "--quiet", "--allow-empty", "-m", "the checkout moves on")
    path.write_bytes((root / "params.yaml").read_bytes())
    (line,) = refusals(root, "mine", "main", Choices(), OVERRIDES, [0, 1])
    assert line.startswith(
        "overrides.slow: name: the run mine-slow-seed1 exists and did not start from main; "
    )


def test_what_was_left_of_a_trial_that_was_killed_is_in_nobodys_way(root: Path):
    worktree_git(root, "worktree", "add", "--quiet", "--detach", str(root / TRIAL), "HEAD")
    worktree_git(root, "worktree", "lock", str(root / TRIAL))
    assert refusals(root, "mine", "", Choices(), OVERRIDES, [0]) == []
    assert left(root) == ([], "", "")


def test_new_runs_have_one_start_however_often_the_sweep_is_tried_and_known_ones_keep_theirs(
    root: Path,
):
    first = worktree_git(root, "rev-parse", "HEAD")
    choices = Choices(values={"run.seed": 0})
    with run_workspace(root, "known", None, choices, Driver(name="a test")):
        pass
    assert common_start(root, ["known", "new"], "main") == {"known": "main", "new": first}
    worktree_git(root, "commit", "--quiet", "--allow-empty", "-m", "two")
    assert common_start(root, ["new", "newer"], "main") == {"new": first, "newer": first}


def test_runs_that_are_added_without_a_revision_start_where_the_known_ones_did(root: Path):
    first = worktree_git(root, "rev-parse", "HEAD")
    for name in ("mine-seed1", "mine"):  # One whose name ends another's.
        with run_workspace(root, name, None, Choices(rounds=4), Driver(name="a test")) as (at, _):
            for subject in (f"Params of the run {name}", f"Round r1 of the run {name}"):
                worktree_git(at, "commit", "--quiet", "--allow-empty", "-m", subject)
    worktree_git(root, "commit", "--quiet", "--allow-empty", "-m", "two")
    starts = common_start(root, ["mine-seed0", "mine-seed1", "mine"], "")
    assert starts == {"mine-seed0": first, "mine-seed1": "", "mine": ""}


def test_a_run_that_starts_from_another_run_is_added_to_by_runs_from_there(root: Path):
    with run_workspace(root, "before", None, Choices(), Driver(name="a test")) as (at, _):
        worktree_git(at, "commit", "--quiet", "--allow-empty", "-m", "End of the run before")
        start = worktree_git(at, "rev-parse", "HEAD")
    with run_workspace(root, "known", start, Choices(), Driver(name="a test")):
        pass
    assert common_start(root, ["known", "new"], "") == {"known": "", "new": start}


def test_known_runs_go_on_from_where_each_started(root: Path):
    """Such as those that an earlier version added to a sweep, from another commit."""
    first = worktree_git(root, "rev-parse", "HEAD")
    worktree_git(root, "commit", "--quiet", "--allow-empty", "-m", "two")
    second = worktree_git(root, "rev-parse", "HEAD")
    for name, start in (("mine-base-seed0", second), ("mine-far-seed0", first)):
        with run_workspace(root, name, start, Choices(), Driver(name="a test")):
            pass
    names = ["mine-base-seed0", "mine-far-seed0", "mine-far-seed1"]
    assert common_start(root, names, "") == dict.fromkeys(names[:2], "") | {names[2]: second}
    changes = {"far": {"ppo.kl_coef": 0.2}}
    assert refusals(root, "mine", "", Choices(), changes, [0, 1]) == []


def test_a_change_that_is_added_to_a_sweep_is_tried_on_the_commit_of_its_other_runs(root: Path):
    params = root / "params.yaml"
    as_it_is = params.read_text()
    with run_workspace(root, "mine-base-seed0", None, Choices(), Driver(name="a test")):
        pass
    # By now the checkout has params that no run could have.
    params.write_text(as_it_is.replace("run:\n", "run:\n  old: 1\n", 1))
    worktree_git(root, "commit", "--quiet", "--all", "-m", "two")
    state = order(overrides={"far": {"run.threads": 0}}, seeds=[0])
    said = "overrides.far: run.threads: input should be greater than or equal to 1, found 0"
    assert (state.name, state.message) == ("BadInput", said)


def test_runs_that_are_all_known_need_no_revision_that_is_still_there(root: Path):
    with run_workspace(root, "known", None, Choices(), Driver(name="a test")):
        pass
    assert common_start(root, ["known"], "gone") == {"known": "gone"}

"""Workspaces and branches of runs, in a real git repository."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dvc.config import Config
from ruamel.yaml import YAML

from tasks.params.loading import ParamsError, load_params
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver, WorkspaceBusyError
from tasks.workspace.runs import commit_run, remove_run, run_workspace, tag_run
from tasks.workspace.worktrees import WorkspaceError, workspaces
from tests.git_command import git
from tests.word_models import write_chat_model

ROOT = Path(__file__).resolve().parents[4]
LOCK = """\
schema: '2.0'
stages:
  sft:
    cmd: one
    outs:
    - path: models/sft
      md5: 0a
  ppo@r1:
    cmd: two
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "params", repository / "params")
    shutil.copy(ROOT / "params.yaml", repository)
    shutil.copy(ROOT / "dvc.yaml", repository)
    (repository / "dvc.lock").write_text(LOCK)
    (repository / "metrics").mkdir()
    (repository / "metrics/final.json").write_text("of an earlier run")
    (repository / ".dvc").mkdir()
    (repository / ".dvc/config").write_text("['remote \"shared\"']\n    url = ../../remote\n")
    (repository / ".dvc/.gitignore").write_text("/config.local\n")
    (repository / ".gitignore").write_text("/.work/\n/models/\n")
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit(repository, "one")
    return repository


def commit(root: Path, message: str) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "-m", message)


def prepare_run(root: Path, name: str, revision: str | None, choices: Choices) -> Path:
    with run_workspace(root, name, revision, choices, Driver(name="test")) as (workspace, _):
        return workspace


def of(**choices: object) -> Choices:
    return Choices(**choices)  # type: ignore[arg-type]


def test_a_run_has_a_commit_and_not_the_edits_of_the_checkout(root: Path):
    first = git(root, "rev-parse", "HEAD")
    (root / "dvc.lock").write_text("second")
    commit(root, "two")
    (root / "params.yaml").write_text("edited")

    workspace = prepare_run(root, "mine", first, of(values={"ppo.kl_coef": 0.1}, rounds=4))

    assert workspace == root / ".work/runs/mine"
    assert (workspace / "dvc.lock").read_text() == LOCK
    params = load_params(workspace / "params.yaml")
    assert (params.ppo.kl_coef, params.final) == (0.1, "r4")
    assert (root / "params.yaml").read_text() == "edited"
    assert git(root, "branch", "--show-current") == "main"
    assert git(workspace, "branch", "--show-current") == "runs/mine"
    assert workspaces(root) == [workspace]


def test_without_a_revision_it_is_the_commit_that_is_checked_out(root: Path):
    prepare_run(root, "mine", None, of())
    assert git(root, "rev-parse", "runs/mine") == git(root, "rev-parse", "main")


def test_remotes_that_a_file_names_by_a_relative_path_are_the_same_place(root: Path):
    workspace = prepare_run(root, "mine", None, of())
    assert f"url = {root.parent / 'remote'}" in (workspace / ".dvc/config.local").read_text()


def test_a_remote_in_ones_home_is_the_same_place_to_dvc(root: Path):
    (root / ".dvc/config").write_text("['remote \"shared\"']\n    url = ~/remote\n")
    commit(root, "a remote for each of us")
    workspace = prepare_run(root, "mine", None, of())
    url = Config(dvc_dir=str(workspace / ".dvc"))["remote"]["shared"]["url"]
    assert url == str(Path.home() / "remote")


def test_the_keys_of_a_remote_are_for_their_owner_only_in_a_workspace_too(root: Path):
    local = root / ".dvc/config.local"
    local.write_text("['remote \"shared\"']\n    password = hunter2\n")
    local.chmod(0o600)
    for _ in range(2):
        copy = prepare_run(root, "mine", None, of()) / ".dvc/config.local"
        assert copy.stat().st_mode & 0o777 == 0o600
        copy.chmod(0o644)  # As earlier versions made it.


def test_a_variant_and_then_the_overrides_are_laid_over_the_params(root: Path):
    workspace = prepare_run(root, "mine", None, of(recipe="seed1", values={"sft.epochs": 2}))
    params = load_params(workspace / "params.yaml")
    assert (params.run.seed, params.sft.epochs) == (1, 2)


def test_a_section_that_is_named_whole_replaces_what_the_params_have(root: Path):
    whole = {"temperature": 0.7, "max_new_tokens": 32}
    workspace = prepare_run(root, "mine", None, of(values={"ppo.sampling": whole}))
    sampling = load_params(workspace / "params.yaml").ppo.sampling
    assert (sampling.temperature, sampling.max_new_tokens) == (0.7, 32)


def test_a_variant_that_is_no_yaml_leaves_no_run_behind(root: Path):
    (root / "params/odd.yaml").write_text("run: {seed: 1\n")
    commit(root, "two")
    with pytest.raises(WorkspaceError, match=r"^params/odd\.yaml: not valid YAML: "):
        prepare_run(root, "mine", None, of(recipe="odd"))
    assert workspaces(root) == []
    assert git(root, "branch", "--list", "runs/*") == ""


def test_a_preset_needs_the_folder_of_a_model_and_gets_it_linked(root: Path):
    with pytest.raises(ParamsError, match=r"smollm2-135m is for a model of your own.*base\.model"):
        prepare_run(root, "mine", None, of(recipe="smollm2-135m"))
    write_chat_model(root / "models/own")
    choices = of(recipe="smollm2-135m", values={"base.model": "models/own", "ppo.kl_coef": 0.3})
    workspace = prepare_run(root, "mine", None, choices)
    params = load_params(workspace / "params.yaml")
    wanted = YAML(typ="safe").load(root / "params/presets/smollm2-135m.yaml")
    assert params.sft.max_tokens == wanted["sft"]["max_tokens"] != 192
    assert params.ppo.kl_coef == 0.3
    assert (workspace / "models/own").resolve() == root / "models/own"


@pytest.mark.parametrize(
    ("people", "before", "after"),
    [
        (True, "rubric", "people"),
        (False, "people", "rubric"),
        (False, "none", "none"),
        (None, "people", "people"),
    ],
)
def test_who_labels_is_chosen(root: Path, people: bool | None, before: str, after: str):
    path = root / "params.yaml"
    text = path.read_text().replace("annotators: rubric", f"annotators: {before}")
    model = "prepare:\n  sources: [{path: pairs.jsonl, format: preferences}]\n"
    if before == "none":
        text = text.replace("prepare:\n", model)
        (root / "pairs.jsonl").touch()
    path.write_text(text)
    commit(root, "labels")
    workspace = prepare_run(root, "mine", None, of(people=people))
    assert load_params(workspace / "params.yaml").label.annotators == after


WRONG = [
    (of(values={"ppo.kl_coeff": 1}), r"^ppo\.kl_coeff: unknown key; did you mean ppo\.kl_coef\?"),
    # As a sweep or a form would be filled in by somebody who thinks of params.yaml.
    (
        of(values={"run": {"seed": 1, "threads": 1}, "ppo.sampling": {"temperature": 1.0}}),
        r"^run: as a whole section it would lose device, precision; name single parameters, as in "
        r"run\.seed\nppo\.sampling: .* lose max_new_tokens; .* ppo\.sampling\.temperature$",
    ),
    (of(values={"ppo.kl_coef": "much"}), r"^ppo\.kl_coef: .*found 'much'"),
    (of(until="pp@r1"), r"^until: no stage 'pp@r1'; did you mean ppo@r1\?"),
    (of(until="ppo@r3", rounds=2), r"^until: no stage 'ppo@r3'; did you mean ppo@r"),
    (of(values={"base.model": "params"}), r"^base\.model: .*no config\.json"),
    (of(recipe="nokl"), r"^recipe: no variant or preset 'nokl'; there are: .*no_kl.*8b-lora-gpu"),
]


@pytest.mark.parametrize(("choices", "said"), WRONG)
def test_what_is_wrong_is_refused_and_leaves_nothing(root: Path, choices: Choices, said: str):
    with pytest.raises(ParamsError, match=said):
        prepare_run(root, "mine", None, choices)
    assert workspaces(root) == []
    assert git(root, "branch", "--list", "runs/*") == ""


@pytest.mark.parametrize("name", ["", "../up", "a..b", "a b", ".hidden", "x.lock", "-d"])
def test_what_cannot_name_a_branch_and_a_folder_is_refused(root: Path, name: str):
    with pytest.raises(WorkspaceError, match="expected letters, digits"):
        prepare_run(root, name, None, of())


def test_a_revision_that_is_not_here_is_refused(root: Path):
    for revision in ("nowhere", "--all", "main:params.yaml"):
        with pytest.raises(WorkspaceError, match="revision: no branch, tag or commit"):
            prepare_run(root, "mine", revision, of())


def test_a_known_run_is_continued_and_keeps_its_files(root: Path):
    workspace = prepare_run(root, "mine", None, of(values={"ppo.kl_coef": 0.1}))
    commit_run(workspace, "Params", files={}, stages=None, trailers={})
    (workspace / "dvc.lock").write_text("of the run")
    (root / "dvc.lock").write_text("of the checkout, later")
    commit(root, "two")

    again = prepare_run(root, "mine", None, of(rounds=4))

    assert (again / "dvc.lock").read_text() == "of the run"
    params = load_params(again / "params.yaml")
    assert (params.ppo.kl_coef, len(params.rounds)) == (0.1, 4)
    with pytest.raises(WorkspaceError, match="exists and did not start from main"):
        prepare_run(root, "mine", "main", of())
    with pytest.raises(ParamsError):
        prepare_run(root, "mine", None, of(values={"x": 1}, rounds=9))
    with pytest.raises(ParamsError, match=r"^base\.model: "):
        prepare_run(root, "mine", None, of(values={"base.model": "params"}, rounds=9))
    assert len(load_params(again / "params.yaml").rounds) == 4


def test_a_known_run_whose_folder_went_is_made_again_from_its_branch(root: Path):
    workspace = prepare_run(root, "mine", None, of(values={"ppo.kl_coef": 0.1}))
    commit_run(workspace, "Params", files={}, stages=None, trailers={})
    shutil.rmtree(workspace)
    again = prepare_run(root, "mine", None, of())
    assert load_params(again / "params.yaml").ppo.kl_coef == 0.1


@pytest.mark.parametrize("folder", ["half", "without .git", "gone"])
def test_a_worktree_that_a_dead_git_has_left_half_is_made_again(root: Path, folder: str):
    workspace = prepare_run(root, "mine", None, of())
    # As `git worktree add` leaves it that is killed while it writes the files.
    half = root / ".git/worktrees/mine"
    (half / "locked").write_text("initializing")
    (half / "index.lock").touch()
    (workspace / "dvc.yaml").unlink()
    if folder != "half":
        (workspace / ".git").unlink()
    if folder == "gone":
        shutil.rmtree(workspace)

    again = prepare_run(root, "mine", None, of(values={"ppo.kl_coef": 0.1}))
    assert (again / "dvc.yaml").read_text() == (root / "dvc.yaml").read_text()
    assert load_params(again / "params.yaml").ppo.kl_coef == 0.1
    commit_run(again, "Params", files={}, stages=None, trailers={})
    remove_run(root, "mine")


@pytest.mark.parametrize("locked", ["index", "HEAD", "refs/heads/runs/kl"])
def test_a_run_whose_git_was_killed_in_the_middle_of_a_commit_goes_on(root: Path, locked: str):
    workspace = prepare_run(root, "kl", None, of())
    git_folder = workspace if locked != "refs/heads/runs/kl" else root
    common = git(git_folder, "rev-parse", "--path-format=absolute", "--git-dir")
    (Path(common) / f"{locked}.lock").touch()

    again = prepare_run(root, "kl", None, of(values={"ppo.kl_coef": 0.2}))

    before = git(root, "rev-parse", "runs/kl")
    commit = commit_run(again, "Round r1", files={}, stages=["sft"], trailers={})
    assert (git(root, "rev-parse", "runs/kl"), commit != before) == (commit, True)


def test_a_worktree_that_a_person_has_locked_is_taken_up_as_it_is(root: Path):
    workspace = prepare_run(root, "mine", None, of())
    git(root, "worktree", "lock", "--reason", "on a stick", str(workspace))
    (workspace / "checkpoint").touch()
    assert (prepare_run(root, "mine", None, of()) / "checkpoint").exists()


def test_a_run_that_is_running_is_busy(root: Path):
    with run_workspace(root, "mine", None, of(rounds=2), Driver(name="one")) as (workspace, _):
        with pytest.raises(WorkspaceBusyError, match="one works here"):
            prepare_run(root, "mine", None, of(rounds=4))
        assert len(load_params(workspace / "params.yaml").rounds) == 2


def test_two_that_start_under_one_name_and_are_refused_leave_nothing(root: Path):
    def refused(_: int) -> bool:
        with pytest.raises(ParamsError, match="did you mean"):
            prepare_run(root, "mine", None, of(values={"ppo.kl_coeff": 1}))
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(refused, range(8))) == [True] * 8
    assert (workspaces(root), git(root, "branch", "--list", "runs/*")) == ([], "")


def test_runs_that_start_at_once_do_not_meet(root: Path):
    names = [f"run{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda name: prepare_run(root, name, None, of()), names))
    assert [path.name for path in made] == names


def test_a_commit_holds_what_is_true_of_the_run_and_the_files_stay(root: Path):
    workspace = prepare_run(root, "mine", None, of(values={"ppo.kl_coef": 0.1}))
    commit_run(
        workspace,
        "Round r1",
        files={"rounds/r1.json": "{}\n"},
        stages=["sft"],
        trailers={"Flow-Run": "f", "MLflow-Run": ""},
    )
    assert git(root, "log", "-1", "--format=%an %s", "runs/mine") == "rlhf-rounds Round r1"
    assert git(root, "log", "-1", "--format=%(trailers)", "runs/mine") == "Flow-Run: f"
    assert git(root, "show", "runs/mine:dvc.lock") == LOCK.partition("  ppo@r1")[0].strip()
    listed = git(root, "ls-tree", "-r", "--name-only", "runs/mine", "metrics/").splitlines()
    assert listed == ["metrics/rounds/r1.json"]
    assert "kl_coef: 0.1" in git(root, "show", "runs/mine:params.yaml")
    assert (workspace / "dvc.lock").read_text() == LOCK
    assert (workspace / "metrics/final.json").read_text() == "of an earlier run"


def test_nothing_new_is_no_commit(root: Path):
    workspace = prepare_run(root, "mine", None, of())
    before = git(root, "rev-parse", "main")
    stages = ["sft", "ppo@r1"]
    assert commit_run(workspace, "Again", files={}, stages=stages, trailers={}) == before


def test_a_run_that_ends_again_gets_another_tag_and_no_tag_moves(root: Path):
    workspace = prepare_run(root, "mine", None, of())
    assert tag_run(workspace, "mine", "well") == "done/mine"
    assert tag_run(workspace, "mine", "well") == "done/mine"
    commit_run(workspace, "On", files={"a.json": "1\n"}, stages=None, trailers={})
    assert tag_run(workspace, "mine", "well") == "done/mine.2"
    assert git(root, "rev-parse", "done/mine^{commit}") == git(root, "rev-parse", "main")


def test_the_tag_of_a_run_whose_name_begins_alike_is_not_taken_for_ours(root: Path):
    workspace = prepare_run(root, "mine", None, of())
    assert tag_run(workspace, "mine2", "well") == "done/mine2"
    assert tag_run(workspace, "mine.again", "well") == "done/mine.again"
    assert tag_run(workspace, "mine", "well") == "done/mine"
    assert tag_run(workspace, "mine2", "well") == "done/mine2"

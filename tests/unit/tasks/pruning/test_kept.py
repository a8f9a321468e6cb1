"""Which runs are kept, and which workspaces: what these need is not removed."""

from pathlib import Path

import pytest

from tasks.pruning.kept import has_strangers, kept_runs
from tasks.pruning.leftovers import kept_workspaces, staying_variants, variants
from tasks.workspace.git import git
from tasks.workspace.worktrees import SETTINGS
from tests.traced_world import START, World, object_path, one_round, put

POLICY = "models/rounds/r1/policy"


class History:
    """Policies that differ: of an old commit, a tag, two branches, an experiment, the checkout."""

    def __init__(self, root: Path) -> None:
        self.world = one_round(root, "ann")
        self.policies: dict[str, str] = {}
        self.commit("old")
        self.run("tagged")
        self.commit("tagged", tag="v1")
        self.run("main")
        self.commit("main")
        for branch in ("other", "experiment"):
            self.world.switch(branch)
            self.run(branch)
            self.commit(branch)
        # As `dvc exp run` keeps it: on no branch.
        git(root, "update-ref", "refs/exps/ab/cd/mine", "HEAD")
        self.world.switch("main")
        git(root, "branch", "-q", "-D", "experiment")
        self.run("checked out")
        self.policies["checked out"] = self.world.now[POLICY][0]

    def run(self, note: str) -> None:
        self.world.round("r1", START, ["ann"], note)

    def commit(self, name: str, tag: str | None = None) -> None:
        self.world.commit(tag)
        self.policies[name] = self.world.now[POLICY][0]

    def kept(self, *, tips: bool) -> set[str]:
        runs = kept_runs(self.world.root, [self.world.root], tips=tips)
        digests = {ran.outs[POLICY] for ran in runs if POLICY in ran.outs}
        return {name for name, digest in self.policies.items() if digest in digests}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("kept") / "world")


def test_all_commits_are_kept_or_the_newest_of_each_branch_tag_and_experiment(
    history: History,
) -> None:
    assert len(set(history.policies.values())) == 6
    assert history.kept(tips=False) == set(history.policies)
    assert history.kept(tips=True) == set(history.policies) - {"old"}


def test_an_object_that_no_run_wrote_is_a_stranger(history: History) -> None:
    world: World = history.world
    everything = list(kept_runs(world.root, [world.root], tips=False))
    assert not has_strangers(world.root, everything)
    assert has_strangers(world.root, list(kept_runs(world.root, [], tips=True)))
    # Of a folder whose list is not here nobody knows the files.
    listing = object_path(world.root, world.now["models/base"][0])
    listing.rename(world.root / "away")
    assert has_strangers(world.root, everything)
    (world.root / "away").rename(listing)
    put(world.root, "of a run that nobody has committed")
    assert has_strangers(world.root, everything)


def test_only_workspaces_of_variants_that_nothing_describes_any_more_go(tmp_path: Path) -> None:
    """Neither those of runs and stages, nor those that an experiment would go on in."""
    places = (
        "variants/no_kl", "variants/gone", "variants/mine-default-seed1", "variants/minette-seed1",
        "runs/gone", "stages/gone",
    )  # fmt: skip
    for place in places:
        (tmp_path / ".work" / place).mkdir(parents=True)
        (tmp_path / ".work" / place / "dvc.yaml").touch()
    for described in ("params/no_kl.yaml", "experiments/params/mine.yaml"):
        (tmp_path / described).parent.mkdir(parents=True)
        (tmp_path / described).touch()

    assert [one.name for one in variants(tmp_path)] == ["gone", "minette-seed1"]
    kept = [path.relative_to(tmp_path / ".work").as_posix() for path in kept_workspaces(tmp_path)]
    assert kept == ["variants/mine-default-seed1", "variants/no_kl", "runs/gone", "stages/gone"]


def test_variants_with_labels_of_people_and_those_of_other_branches_stay(tmp_path: Path) -> None:
    """Their outputs can be made again, what people said cannot; a branch may be checked out again.

    The branch of an ordered run, which has the params of its revision, keeps nothing.
    """
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "dvc.yaml").touch()
    git(tmp_path, "add", "dvc.yaml")
    git(tmp_path, "commit", "-q", "-m", "one", settings=SETTINGS)
    for branch, described in (
        ("mine", "params/elsewhere.yaml"),
        ("other", "experiments/params/sweep.yaml"),
        ("runs/old", "params/gone.yaml"),
    ):
        git(tmp_path, "checkout", "-q", "-b", branch, "main")
        (tmp_path / described).parent.mkdir(parents=True)
        (tmp_path / described).touch()
        git(tmp_path, "add", described)
        git(tmp_path, "commit", "-q", "-m", branch, settings=SETTINGS)
        git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "tag", "main")  # Branches may share their names with tags.
    git(tmp_path, "tag", "other")
    for name in ("elsewhere", "gone", "labelled", "mine", "others", "sweep-default-seed1"):
        (tmp_path / ".work/variants" / name).mkdir(parents=True)
        (tmp_path / ".work/variants" / name / "dvc.yaml").touch()
    (tmp_path / ".work/variants/labelled/.work/feedback").mkdir(parents=True)
    (tmp_path / "labels.db").touch()
    (tmp_path / ".work/variants/mine/labels.db").touch()
    for name, store in (("mine", "sqlite:///labels.db"), ("others", f"{tmp_path}/labels.db")):
        params = tmp_path / ".work/variants" / name / "params.yaml"
        params.write_text(f"label: {{annotators: people, store: '{store}'}}\n")

    assert [one.name for one in variants(tmp_path)] == ["gone", "others"]
    kept = [path.name for path in kept_workspaces(tmp_path)]
    assert kept == ["elsewhere", "labelled", "mine", "sweep-default-seed1"]
    assert staying_variants(tmp_path) == {
        "elsewhere": "the branch mine describes it",
        "labelled": "it has a labelling store of its own, .work/feedback",
        "mine": "it has a labelling store of its own, labels.db",
        "sweep-default-seed1": "the branch other describes it",
    }

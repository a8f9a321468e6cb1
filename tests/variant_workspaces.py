"""Workspaces of variants as `make repro VARIANT=...` leaves them."""

from pathlib import Path

from tasks.workspace.driver_lock import Driver
from tasks.workspace.variants import variant_workspace
from tests.git_command import git

PARAMS = """\
run: {seed: 0, threads: 2}
ppo:
  kl_coef: 0.05
  learning_rate: 1e-5
rounds:
  r2: {policy: models/sft}
  r10: {policy: models/rounds/r2/policy}
"""


def repository_with_variants(folder: Path) -> Path:
    """A git repository below the folder: params, two variants, and a file of code."""
    repository = folder / "repository"
    (repository / "params").mkdir(parents=True)
    (repository / ".dvc").mkdir()
    (repository / "params.yaml").write_text(PARAMS)
    (repository / "params" / "no_kl.yaml").write_text("ppo: {kl_coef: 0.0}\n")
    (repository / "params" / "seed1.yaml").write_text("run: {seed: 1}\n")
    (repository / "dvc.yaml").write_text("stages: {}\n")
    (repository / "dvc.lock").write_text("main\n")
    (repository / "code.py").write_text("one\n")
    (repository / ".gitignore").write_text(".work\n/models\n")
    (repository / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (repository / ".dvc" / ".gitignore").write_text("/config.local\n/cache\n")
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "one")
    return repository


def prepare_workspace(root: Path, name: str) -> Path:
    """Make or refresh one, and let go of it."""
    with variant_workspace(root, name, Driver(name="a test")) as workspace:
        return workspace

"""What a clone holds does not depend on the settings of the git that clones."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = (".gitattributes", "params.yaml", "dvc.yaml", "Makefile")


def git(*arguments: str, folder: Path) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_line_ends_survive_a_clone_with_autocrlf(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    for name in KEPT:
        shutil.copy(ROOT / name, origin / name)
    git("init", folder=origin)
    git("add", ".", folder=origin)
    git("commit", "-m", "all", folder=origin)

    git("clone", "-c", "core.autocrlf=true", str(origin), "theirs", folder=tmp_path)

    for name in KEPT:
        assert (tmp_path / "theirs" / name).read_bytes() == (ROOT / name).read_bytes(), name

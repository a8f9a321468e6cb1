"""While `make prune` removes, nobody makes or takes up a workspace of which it knows nothing."""

from pathlib import Path

import pytest

from tasks import prune
from tasks.pruning.leftovers import Leftover
from tasks.workspace.held import is_held
from tests.git_command import git

LOCKS = [Path(".work") / kind / ".lock" for kind in ("runs", "variants", "stages")]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.mark.parametrize(("options", "held"), [(["--tips", "--yes"], True), (["--tips"], False)])
def test_no_workspace_begins_while_dvc_looks_and_removes(
    root: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], held: bool
) -> None:
    seen: list[list[bool]] = []

    class Cache:
        """Of DVC, which takes minutes for a long history."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def leftover(self) -> Leftover:
            seen.append([is_held(root / lock) for lock in LOCKS])
            return Leftover("DVC's cache", "1 object", (root / "object",))

        def collect(self) -> None:
            seen.append([is_held(root / lock) for lock in LOCKS])

    monkeypatch.setattr(prune, "Cache", Cache)

    assert prune.main(options) == 0

    assert seen == ([[True] * 3] * 2 if held else [[False] * 3])
    assert not any(is_held(root / lock) for lock in LOCKS)

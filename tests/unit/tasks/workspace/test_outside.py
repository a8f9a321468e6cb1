"""Where no pipeline is, commands say so, and leave nothing behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import promote, prune, sync


@pytest.mark.parametrize("main", [sync.main, prune.main, promote.main])
def test_outside_of_a_repository_a_command_does_nothing(
    main: Callable[[list[str]], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):
        assert main([]) == 2
        problem = f"{tmp_path}: no dvc.yaml here; run this from the repository root\n"
        assert capsys.readouterr() == ("", problem)
    assert list(tmp_path.iterdir()) == []

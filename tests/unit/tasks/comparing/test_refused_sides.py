"""Sides and pictures that there are not: one line, and nothing is written."""

from pathlib import Path

import pytest

from tasks.compare import main
from tasks.comparing.plots import require_format
from tasks.comparing.sides import SideError, side
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.traced_world import World
from tests.unit.tasks.comparing.compared import world_fixture  # noqa: F401


def test_an_unknown_side_is_refused_with_what_could_be_meant(world: World) -> None:
    def prepared(place: str) -> None:
        (world.root / ".work" / place).mkdir(parents=True)
        (world.root / ".work" / place / "dvc.yaml").touch()

    prepared("stages/sft-84f33e6")
    with pytest.raises(SideError, match=r"nowhere: no commit, .* no variant .*\(none has run\)"):
        side(world.root, "nowhere")
    prepared("variants/no_kl")
    prepared("runs/mine")
    with pytest.raises(SideError, match=r"no variant .*\(no_kl, mine\)"):
        side(world.root, "nowhere")


def test_a_picture_of_no_known_format_is_refused_before_anything_is_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["first", "second", "--out", "x.foo"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("--out x.foo: ")
    assert ".png" in err
    require_format(Path("x.PNG"))


def test_a_picture_that_cannot_be_written_is_one_line_after_all_others(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.root / "taken").write_text("a file, no folder")

    assert main(["first", "second", "--out", "taken/x.png"]) == 2

    out, err = capsys.readouterr()
    assert "policies:" in out
    assert err.count("\n") == 1
    assert "taken" in err


def test_a_name_about_which_mlflow_cannot_be_asked_is_one_line(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert main(["first", "some run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "some run: no commit, variant or ordered run, and MLflow cannot say whether it "
    )
    assert said.count("\n") == 1

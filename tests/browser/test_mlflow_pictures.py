"""The script that takes the documentation's pictures of MLflow, on a store of three executions."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tests.browser.mlflow_pictures import main

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(1200)]

COLOURS = {"default": (204, 0, 0), "no_kl": (0, 0, 204), "frozen_reward": (0, 136, 0)}
"""Execution -> the colour in which MLflow is told to draw it."""
RESULTS = ("gold", "win_rate_vs_sft", "kl", "reward_accuracy", "test/gold", "seconds")
CURVES = ("score", "gold", "kl", "entropy", "length")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SCREENSHOTS", "")  # The script sets it, and it goes back afterwards.
    root = tmp_path / "checkout"
    (root / ".work").mkdir(parents=True)
    store = connect(tracking_uri(root))
    for number, name in enumerate(COLOURS, start=1):
        run = store.client.create_run(store.experiment, run_name=name).info.run_id
        colour = "".join(f"{part:02x}" for part in COLOURS[name])
        store.client.set_tag(run, "mlflow.runColor", f"#{colour}")
        for result in RESULTS:
            store.client.log_metric(run, result, 8.5 - number)
        for curve in CURVES:
            for step in range(5):
                store.client.log_metric(run, f"ppo/objective/{curve}", step * number, step=step)
        store.client.set_terminated(run)
    return root


def drawn(path: Path, pixels: int) -> set[str]:
    """The executions whose colour a picture has in so many pixels, give or take its rounding."""
    with Image.open(path) as picture:
        found = picture.convert("RGB").getcolors(picture.width * picture.height) or []
    counted = {
        name: sum(
            number
            for number, pixel in found
            if all(abs(one - other) <= 1 for one, other in zip(pixel, colour, strict=True))
        )
        for name, colour in COLOURS.items()
    }
    return {name for name, number in counted.items() if number >= pixels}


@pytest.mark.usefixtures("browser")
def test_both_pictures_are_of_the_runs_alone_and_show_each_of_them(
    checkout: Path, tmp_path: Path
) -> None:
    main(checkout, tmp_path / "pictures")
    table, curves = (tmp_path / f"pictures/mlflow-{name}.png" for name in ("table", "curves"))
    sizes: list[Any] = []
    for path in (table, curves):
        with Image.open(path) as picture:
            sizes.append(picture.size)
    (_, low), (_, high) = sizes
    # Two rows of buttons, two of headings, three of runs; the charts are taller.
    assert 200 < low < 300 < high
    # The dot before a name is one of 60 pixels; lines have more.
    assert drawn(table, 50) == drawn(curves, 120) == set(COLOURS)
    assert not (checkout / ".work/mlflow-pictures.log").exists()

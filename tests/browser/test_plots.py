"""`dvc plots` in a browser that reaches no network: the page draws its curves all the same."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.git_command import git

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
PIPELINE = """\
plots:
  - loss: {x: step, y_label: nats, y: {r1.csv: loss, r2.csv: loss}}
"""
COLOURED = """
let found = 0;
for (const canvas of document.querySelectorAll("canvas")) {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < pixels.length; i += 4) {
    const [red, green, blue] = pixels.slice(i, i + 3);
    found += Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
  }
}
return found;
"""
"""Pixels that are neither black, white nor grey: what belongs to a curve."""


@pytest.fixture
def offline(browser: Any) -> Any:
    browser.execute_cdp_cmd("Network.enable", {})
    blocked = {"urls": ["http://*", "https://*"]}
    browser.execute_cdp_cmd("Network.setBlockedURLs", blocked)
    yield browser
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def dvc(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """A repository with our DVC settings and two curves, which have changed since the commit."""
    git(tmp_path, "init", "--quiet")
    dvc(tmp_path, "init", "--quiet")
    config = tmp_path / ".dvc" / "config"
    config.write_bytes((REPOSITORY / ".dvc" / "config").read_bytes())
    (tmp_path / "third_party").symlink_to(REPOSITORY / "third_party")
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    for factor in (1, 2):
        for name in ("r1", "r2"):
            rows = "".join(f"{step},{factor * step * int(name[1])}\n" for step in range(9))
            (tmp_path / f"{name}.csv").write_text(f"step,loss\n{rows}")
        if factor == 1:
            git(tmp_path, "add", "--all")
            git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


@pytest.mark.parametrize("command", ["show", "diff"])
def test_the_page_draws_its_curves_without_a_network(
    offline: Any, curves: Path, command: str, picture: Any
) -> None:
    dvc(curves, "plots", command, "--out", "page")
    offline.get((curves / "page" / "index.html").as_uri())
    # Vega draws when it is ready; the page has no other sign of that.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (drawn := offline.execute_script(COLOURED)) <= 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    picture(f"plots-{command}")
    assert drawn > 100
    assert "loss" in offline.page_source
    errors = [row["message"] for row in offline.get_log("browser") if row["level"] == "SEVERE"]
    assert errors == []

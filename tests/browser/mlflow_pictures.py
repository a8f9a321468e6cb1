"""The two pictures of MLflow's page in docs/how-to/compare-runs.md, from the runs of a checkout.

    python -m tests.browser.mlflow_pictures CHECKOUT FOLDER

writes mlflow-table.png and mlflow-curves.png into FOLDER. For the pictures of the documentation the
checkout has the default run and two variants: make repro, make repro VARIANT=no_kl, make repro
VARIANT=frozen_reward. Needs Chromium and its driver (apt-get install chromium chromium-driver).
"""

import os
import sys
from pathlib import Path

from PIL import Image

from flows.environment import environment
from flows.servers import any_free_port, mlflow_server
from tasks.tracking.view import runs_page
from tests.integration.camera import Camera, camera

TABLE, CURVES = "mlflow-table", "mlflow-curves"
SHOWN = "ppo/objective/(score|gold|kl|entropy)"
"""Charts on the second picture."""
MARGIN = 12

BOX = """
    const box = (one) => document.querySelector(one).getBoundingClientRect();
    const rows = [...document.querySelectorAll('.ag-row')];
    return [box('.ag-root-wrapper').left, box('input[placeholder^="metrics."]').top,
            Math.max(...rows.map((row) => row.getBoundingClientRect().bottom))];
"""
"""Left and top of what belongs to the runs, and the bottom of the last one."""
HIDE_FLOATING = """
    for (const one of document.querySelectorAll('body *')) {
        const box = one.getBoundingClientRect();
        if (getComputedStyle(one).position === 'fixed' && box.width < 100) one.remove();
    }
"""
TOGGLE = '[data-component-id="mlflow_header.toggle_sidebar_button"]'
CLOSE_ASSISTANT = """
    localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
    localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
"""
"""A panel of MLflow's that a browser opens by itself once."""
RUNS = """
    const rows = [...document.querySelectorAll('.ag-row')];
    return new Set(rows.map((row) => row.getAttribute('row-index'))).size;
"""
"""How many runs the table has; a row has an element for each group of columns."""
DRAWN = """
    const charts = [...document.querySelectorAll('.js-plotly-plot')];
    const lines = charts.map((one) => one.querySelectorAll('.scatterlayer path.js-line').length);
    return Math.max(0, ...lines);
"""
"""The lines of the chart that has most."""


def main(checkout: Path, folder: Path) -> None:
    """Serve MLflow's page over the store of a checkout, and keep what it shows."""
    os.environ["SCREENSHOTS"] = str(folder)
    log = checkout / ".work" / "mlflow-pictures.log"
    with mlflow_server(any_free_port(), environment(checkout), log=log) as server:
        server.wait()
        page = runs_page(server.url, checkout)
        with camera() as pictures:
            assert pictures is not None
            pictures.browser.get(server.url)
            pictures.browser.execute_script(CLOSE_ASSISTANT)
            take(pictures, page, folder)
    log.unlink()


def take(pictures: Camera, page: str, folder: Path) -> None:
    """Take both, cut to what is below MLflow's own menus."""
    browser = pictures.browser
    open_runs(pictures, page)
    pictures.wait(lambda: pictures.sees("win_rate_vs_sft") and browser.execute_script(RUNS))
    runs = browser.execute_script(RUNS)
    left, top, bottom = browser.execute_script(BOX)
    pictures.keep(TABLE)
    cut(folder / f"{TABLE}.png", left, top, bottom + MARGIN)
    open_runs(pictures, f"{page}&compareRunsMode=CHART")
    search = 'input[placeholder="Search metric charts"]'
    pictures.wait(lambda: browser.find_elements("css selector", search))
    browser.find_element("css selector", search).send_keys(SHOWN)
    # A line for each execution in the charts that fit on the page.
    pictures.wait(lambda: browser.execute_script(DRAWN) >= runs)
    left, top, _ = browser.execute_script(BOX)
    pictures.keep(CURVES)
    cut(folder / f"{CURVES}.png", left, top)


def open_runs(pictures: Camera, address: str) -> None:
    """Open a page of the runs, without MLflow's menu at its side."""
    browser = pictures.browser
    browser.get("about:blank")  # Else an address that differs behind its # loads nothing.
    browser.get(address)
    pictures.wait(lambda: pictures.sees("Run Name"))
    if pictures.sees("Model registry"):
        browser.find_element("css selector", TOGGLE).click()
        pictures.wait(lambda: not pictures.sees("Model registry"))
    browser.execute_script(HIDE_FLOATING)


def cut(path: Path, left: float, top: float, bottom: float | None = None) -> None:
    """Keep what is to the right of and below a point."""
    with Image.open(path) as whole:
        corner = (round(left) - MARGIN, round(top) - MARGIN)
        part = whole.crop((*corner, whole.width, round(bottom or whole.height)))
    part.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())

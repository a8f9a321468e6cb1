"""Tables of the report on a small screen, and on paper, which nobody can scroll."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

STYLE = Path(__file__).resolve().parents[2] / "tasks/reporting/report.css"
A4 = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
"""Its width in CSS pixels, less Chromium's margins."""
INTERVAL = '<td><b>−3.65</b> <span class="interval">−4.01 to −3.29</span></td>'
PLAIN = "<td>0.062</td>"
LINES = """
return [...document.querySelectorAll("tr:first-child td")].map((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return new Set([...text.getClientRects()].map((part) => part.top)).size;
});
"""
OVERHANG = """
const box = document.querySelector(".scroll");
return box.scrollWidth - box.clientWidth;
"""


def test_no_column_of_a_table_is_cut_off(browser: Any, tmp_path: Path) -> None:
    row = f"<th>test (r2)</th>{4 * INTERVAL}{4 * PLAIN}"
    page = tmp_path / "report.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{STYLE.read_text()}</style>'
        f'<body><div class="scroll"><table><tbody><tr>{row}</tr></tbody></table></div></body>'
    )
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", A4)
    browser.get(page.as_uri())
    assert browser.execute_script(OVERHANG) > 0, "on a screen it scrolls"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script(OVERHANG) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_a_number_stays_in_one_line_beside_a_long_value(
    browser: Any, tmp_path: Path, width: int
) -> None:
    """Where any letter could begin a line, a column was as narrow as one letter."""
    files = json.dumps({f"file_{n}": f"mine/of_a_team/rows-{n}.jsonl" for n in range(9)})
    numbers = "<tr><th>prepare.corpus_documents</th><td>100000</td><td>42000</td></tr>"
    page = tmp_path / "report.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{STYLE.read_text()}</style><body>'
        f'<div class="scroll"><table class="params"><tbody>{numbers}'
        f"<tr><th>prepare.files</th><td>{files}</td><td>null</td></tr></tbody></table></div></body>"
    )
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", A4 | {"width": width})
    browser.get(page.as_uri())
    try:
        assert browser.execute_script(LINES) == [1, 1]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert browser.execute_script(LINES) == [1, 1] or width == 360
        assert browser.execute_script(OVERHANG) == 0 or width == 360
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

"""The report on paper, which nobody can scroll."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

STYLE = Path(__file__).resolve().parents[2] / "tasks/reporting/report.css"
A4 = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
"""Its width in CSS pixels, less Chromium's margins."""
INTERVAL = '<td><b>−3.65</b> <span class="interval">−4.01 to −3.29</span></td>'
PLAIN = "<td>0.062</td>"
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

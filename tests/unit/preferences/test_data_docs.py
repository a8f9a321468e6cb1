import re
from pathlib import Path

import pytest

from preferences import data_docs
from preferences.data_docs import make_readable_offline

PAGE = """<!doctype html><html><head>
<link rel="stylesheet" href="https://cdn.example/x.css"/>
<link rel=stylesheet href=//cdn.example/y.css>
<link rel="shortcut icon" href="../static/favicon.ico"/>
<script src="https://cdn.example/x.js"></script><SCRIPT>
  alert(1)
</SCRIPT >
<scr<script></script>ipt>alert(3)</scr<script></script>ipt>
<META http-equiv=refresh content="0;url=https://evil.example">
</head><body onload="alert(2)">
<img src="https://cdn.example/logo.png"><iframe src="https://x"></iframe>
<a href="https://docs.example/">docs</a><p>Observed: 3</p></body></html>"""


def test_pages_keep_their_words_and_lose_all_that_runs_or_is_fetched(tmp_path):
    page = tmp_path / "deep" / "page.html"
    page.parent.mkdir()
    page.write_text(PAGE)
    make_readable_offline(tmp_path)
    html = page.read_text()
    for gone in ("cdn.example", "alert(", "<script", "<iframe", "onload", "refresh"):
        assert gone not in html.lower()
    for kept in (
        "Observed: 3",
        "../static/favicon.ico",
        "https://docs.example/",
        "default-src 'none'",
    ):
        assert kept in html
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("</head>")
    assert '<a href="deep/page.html">' in (tmp_path / "index.html").read_text()


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb by WCAG 2.2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("dark", "background"), [(False, "#ffffff"), (True, "#121212"), (True, "#212529")]
)
def test_texts_can_be_read_on_light_and_dark_pages(dark: bool, background: str):
    """4.5 to 1 at the least (WCAG 2.2, 1.4.3); #212529 is behind Great Expectations' tables."""
    style = Path(data_docs.__file__).with_name("data_docs.css").read_text()
    light, _, in_the_dark = style.partition("@media (prefers-color-scheme: dark)")
    colors = re.findall(r"[{ ]color: (#[0-9a-f]{6})", in_the_dark if dark else light)
    assert len(colors) == 4
    for color in colors:
        one, other = sorted([luminance(color), luminance(background)])
        assert (other + 0.05) / (one + 0.05) >= 4.5, color

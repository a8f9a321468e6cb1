"""What is shipped of other projects is what its page says it is."""

import hashlib
import re
from pathlib import Path

VEGA = Path(__file__).parents[2] / "third_party" / "vega"


def test_the_plots_page_holds_the_very_files_that_its_readme_names() -> None:
    page = (VEGA / "plots.html").read_text(encoding="utf-8")
    scripts = re.findall(r'<script data-package="(.+?)@(.+?)">(.*?)</script>', page, re.DOTALL)
    found = [
        (name, version, hashlib.sha256(_with_source_map(name, code).encode()).hexdigest())
        for name, version, code in scripts
    ]
    table = (VEGA / "README.md").read_text(encoding="utf-8")
    assert found == re.findall(r"^\| (vega[-a-z]*) \| ([\d.]+) \| `(\w+)` \|$", table, re.MULTILINE)
    assert len(found) == 3


def test_the_plots_page_names_nothing_that_it_would_fetch() -> None:
    page = (VEGA / "plots.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|img|link)[^>]*(?:src|href)=\"?(?:https?:)?//", page)
    assert "{plot_divs}" in page
    assert "{scripts}" not in page


def _with_source_map(name: str, code: str) -> str:
    """The file as published: its last line, which names a source map, is left out of the page."""
    return f"{code}\n//# sourceMappingURL={name}.min.js.map\n"

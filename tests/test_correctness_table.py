"""docs/correctness.md says no more than there is: all numbers, and only tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
STATEMENTS, DEFECTS = PAGE.split("## The eleven defects of peers")
TESTS = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows(text: str) -> dict[int, str]:
    """Number -> its row of a table."""
    return {int(row[1]): row[0] for row in re.finditer(r"^\| (\d+) \|.*$", text, re.MULTILINE)}


def test_every_statement_and_every_defect_has_a_row_with_a_test():
    assert list(rows(STATEMENTS)) == list(range(1, 65))
    assert list(rows(DEFECTS.split("\n## ")[0])) == list(range(1, 12))
    for text in (STATEMENTS, DEFECTS.split("\n## ")[0]):
        assert [number for number, row in rows(text).items() if not TESTS.search(row)] == []


def test_every_test_that_is_named_exists():
    named = set(TESTS.findall(PAGE))
    assert len(named) > 100
    sources = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named}
    assert {
        f"{file}::{name}" for file, name in named if f"def {name}(" not in sources[file]
    } == set()

"""docs/params.md says what the code says."""

from pathlib import Path

from tasks.params.page import page

ROOT = Path(__file__).parents[4]


def test_the_page_in_docs_is_what_the_dataclasses_say() -> None:
    assert (ROOT / "docs" / "params.md").read_text(encoding="utf-8") == page(), (
        "run: python -m tasks.params.page > docs/params.md"
    )


def test_a_nested_default_is_the_owners_not_the_fields() -> None:
    rows = [line for line in page().splitlines() if "`embedded.optimiser.name`" in line]
    assert len(rows) == 1
    assert "| `muon` |" in rows[0]


def test_a_zero_is_not_shown_as_false() -> None:
    seed = next(line for line in page().splitlines() if line.startswith("| `seed`"))
    assert seed.split("|")[3].strip() == "`0`"

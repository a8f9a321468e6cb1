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


def row(key: str) -> list[str]:
    (line,) = (line for line in page().splitlines() if line.startswith(f"| `{key}` |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_section_that_its_owner_makes_has_the_owners_defaults_and_text():
    assert row("bounds.longer_wins.limit")[2] == "`0.8`"
    assert row("bounds.agreement.limit")[2] == "`0.2`"
    assert row("bounds.longer_wins")[1:] == [
        "section", "", "Share of fresh pairs whose longer response was chosen."
    ]  # fmt: skip


def test_a_list_of_sections_is_one_and_its_keys_are_those_of_an_entry():
    assert row("sources")[1:3] == ["list of sections", "`[]`"]
    assert row("sources[].path")[2] == "required"
    assert "| `sources.path`" not in page()

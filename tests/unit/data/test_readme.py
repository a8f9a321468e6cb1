"""The numbers in data/README.md match the code."""

import re
from pathlib import Path

import pytest

from data.support_desk.intents import SPLITS
from data.support_desk.responses import SENTENCES
from data.support_desk.rubric import explain, score_response
from data.support_desk.splits import capacity
from data.support_desk.templates import select_templates
from data.support_desk.writers import WRITERS
from tasks.params.prepare import PrepareParams

README = (Path(__file__).parents[3] / "data" / "README.md").read_text(encoding="utf-8")


def test_the_example_responses_score_what_the_readme_says() -> None:
    prompt = re.findall(r"^> (.+)$", README, re.MULTILINE)[0]
    rows = re.findall(r"^\| (\S+) \|(?: \d+ %)? ?\| (.+\.) \| ([0-9.]+) \|$", README, re.MULTILINE)
    assert [writer for writer, _, _ in rows] == [*WRITERS, "(ideal)"]
    for _, answer, score in rows:
        assert score_response(prompt, answer) == pytest.approx(float(score))


def test_the_table_of_terms_names_every_term_of_the_rubric() -> None:
    section = README.split("### The rubric")[1].split("### The modules")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    prompt = re.findall(r"^> (.+)$", README, re.MULTILINE)[0]
    assert set(named) == set(explain(prompt, ""))


def test_the_sizes_are_those_of_the_code() -> None:
    templates = select_templates(train=PrepareParams().train_templates)
    for split in SPLITS:
        assert f"| {capacity(split, templates=templates):,} |" in README
    assert f"| {len(SENTENCES)}, not counting" in README

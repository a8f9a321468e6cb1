"""Nouns and verbs agree with their numbers."""

import pytest

from tasks.running.amounts import amount


@pytest.mark.parametrize(
    ("count", "noun", "verb"),
    [(0, "0 files", "differ"), (1, "1 file", "differs"), (1234, "1,234 files", "differ")],
)
def test_a_number_has_its_noun_and_verb(count: int, noun: str, verb: str) -> None:
    assert amount(count, "file") == noun
    assert amount(count, "file", ("differs", "differ")) == f"{noun} {verb}"

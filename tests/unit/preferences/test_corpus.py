"""Files that `python -m benchmarks.fuzz_reader` found: each is now read, or refused with words."""

import json
from pathlib import Path

import pytest

from benchmarks.fuzz_reader import read

CORPUS = sorted((Path(__file__).parents[2] / "corpus").glob("*/how.json"))


def test_the_corpus_is_there():
    assert CORPUS


@pytest.mark.parametrize("how", CORPUS, ids=lambda how: how.parent.name)
def test_a_file_that_was_found_is_survived(how: Path):
    given = json.loads(how.read_text(encoding="utf-8"))
    path = how.parent / given["file"]
    assert read(path, given["format"], given["map"], given["skip_malformed"]) in (
        "read",
        "empty",
        "refused",
    )

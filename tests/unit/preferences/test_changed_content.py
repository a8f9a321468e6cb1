"""A file whose content changes between two readings is refused."""

import pytest

from preferences.formats.reading import open_source
from preferences.reader import MalformedDataError
from tests.file_cases import VOTES
from tests.unit.preferences.layout_rows import GOOD, write


def test_a_file_of_equal_length_put_in_its_place_is_noticed(tmp_path):
    path = write(tmp_path / "x.jsonl", GOOD)
    source = open_source(path)
    size = path.stat().st_size
    list(source)
    list(source)
    path.write_text(path.read_text().replace("Answer 7 with words.", " " * 20))
    assert path.stat().st_size == size
    with pytest.raises(MalformedDataError, match="changed while in use: other content"):
        list(source)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ({"prompt": "p", "chosen": "aa", "rejected": "bb"}, {"chosen": "bb", "rejected": "aa"}),
        ({"prompt": "p", "chosen": "aa", "rejected": "bb", "label": 1.0}, {"label": 0.5}),
        (VOTES, {"votes": ["b"]}),
        (VOTES, {"workers": ["y"]}),
        (VOTES, {"response_b": "c"}),
        ({**VOTES, "finished_a": True, "finished_b": True}, {"finished_a": False}),
    ],
)
def test_answers_labels_or_votes_that_changed_are_other_content(tmp_path, row, change):
    path = write(tmp_path / "x.jsonl", [row])
    source = open_source(path)
    assert list(source) == list(source)
    write(path, [{**row, **change}])
    with pytest.raises(MalformedDataError, match="changed while in use: other content"):
        list(source)

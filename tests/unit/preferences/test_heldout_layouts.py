"""Held-out prompts in a layout of their own: rows of the same set, as a rule."""

import pytest

from preferences.formats.maps import layout_of
from preferences.formats.reading import read_prompts
from preferences.reader import MalformedDataError
from tests.unit.preferences.layout_rows import alpaca, user, write

TREE = {
    "message_tree_id": "m1",
    "prompt": {
        "role": "prompter",
        "text": "Hello?",
        "replies": [
            {"role": "assistant", "text": said, "rank": rank, "replies": []}
            for rank, said in enumerate(("better", "worse"))
        ],
    },
}


@pytest.mark.parametrize(
    ("layout", "rows", "prompts"),
    [
        ("alpaca_eval", [alpaca(1, 1), alpaca(2, 2)], ["i1", "i2"]),
        ("oasst", [TREE], [[user("Hello?")]]),
        ("alpaca_eval", [{"prompt": "plain"}], ["plain"]),
    ],
)
def test_prompts_are_found_by_the_layout_of_the_data(tmp_path, layout, rows, prompts):
    path = write(tmp_path / "heldout.jsonl", rows)
    assert read_prompts(path, layout_of(layout)) == prompts


def test_a_row_that_the_layout_does_not_fit_is_named(tmp_path):
    path = write(tmp_path / "heldout.jsonl", [alpaca(1, 1), {"instruction": "i2"}])
    with pytest.raises(MalformedDataError, match=r'heldout\.jsonl:2: column "output_1": missing'):
        read_prompts(path, layout_of("alpaca_eval"))

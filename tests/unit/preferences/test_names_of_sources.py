"""Every pair names its data set, by which it is counted, traced and withdrawn."""

from pathlib import Path
from typing import Any

import pytest

from preferences.source_params import SourceParams
from preferences.sources import gather
from tests.unit.preferences.layout_rows import write

TEXTS = {"prompt": "p", "response_a": "a", "response_b": "b"}
STUDIO = {
    "id": 1,
    "data": TEXTS,
    "annotations": [
        {
            "id": 1,
            "completed_by": 1,
            "result": [
                {
                    "from_name": "choice",
                    "to_name": "pair",
                    "type": "pairwise",
                    "value": {"selected": "left"},
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**TEXTS, "votes": ["a", "a"], "workers": ["w1", "w2"]}, None),
        (STUDIO, None),
        ({"prompt": "p", "responses": ["a", "b"], "scores": [1, 1]}, None),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, None),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "source": "forum"}, "forum"),
    ],
    ids=["votes", "Label Studio", "a tie of scores", "pairs", "pairs that name theirs"],
)
def test_pairs_name_their_file_unless_they_name_another_source(
    row: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path / "mine.jsonl", [row])

    (found,) = gather([SourceParams(path=str(path))], heldout_fraction=0.0)

    assert [pair.source for pair in found.rows] == [said or str(path)]

"""Folders as the hub has them: which files are data, and of which split."""

import json
from pathlib import Path

import pytest
from datasets import Dataset

from preferences.formats.files import write_records
from preferences.reader import MalformedDataError
from preferences.source_params import SourceParams
from preferences.sources import gather

ROWS = [{"prompt": f"p{n}", "chosen": "yes", "rejected": "no"} for n in range(5)]
FEATURES = {name: {"dtype": "string", "_type": "Value"} for name in ROWS[0]}


def read(path: Path, split: str = "train") -> list[str]:
    (found,) = gather([SourceParams(path=str(path), split=split)], heldout_fraction=0.0)
    return [row.prompt for row in found.rows]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.jsonl.gz", "test.jsonl.gz"),  # Anthropic/hh-rlhf, each of its folders
        ("train.json", "validation.json"),  # stanfordnlp/SHP, each of its folders
        ("set-train-00000-of-00001.parquet", "set-test-00000-of-00001.parquet"),
    ],
)
def test_files_that_are_called_after_splits_are_read_by_their_split(
    tmp_path: Path, train: str, test: str
):
    write_records(tmp_path / train, ROWS[:2])
    write_records(tmp_path / test, ROWS[2:])
    (tmp_path / "README.md").write_text("Pairs.")
    assert read(tmp_path) == ["p0", "p1"]
    assert read(tmp_path, "validation" if "valid" in test else "test") == ["p2", "p3", "p4"]
    with pytest.raises(MalformedDataError, match="dev"):
        read(tmp_path, "dev")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("train.jsonl", "heldout.jsonl"),  # what the gate writes: rows of our own know their side
        ("train-1.jsonl", "train-2.jsonl"),
        ("constraints.jsonl", "contest.jsonl"),
        ("helpful.jsonl", "test.jsonl"),
    ],
)
def test_of_other_folders_all_files_are_read(tmp_path: Path, one: str, other: str):
    write_records(tmp_path / one, ROWS[:2])
    write_records(tmp_path / other, ROWS[2:])
    assert sorted(read(tmp_path, "test")) == [row["prompt"] for row in ROWS]


@pytest.mark.parametrize("about", ["dataset_infos.json", "dataset_info.json"])
def test_what_a_data_set_says_of_itself_is_no_data(tmp_path: Path, about: str):
    (tmp_path / "hub/data").mkdir(parents=True)
    file = tmp_path / "hub/data/train-00000-of-00001-2a1df75c6bce91ab.parquet"
    Dataset.from_list(ROWS).to_parquet(file)
    write_records(tmp_path / "plain/pairs.jsonl", ROWS)
    for folder in ("hub", "plain"):
        (tmp_path / folder / about).write_text(json.dumps({"default": {"features": FEATURES}}))
        assert read(tmp_path / folder) == [row["prompt"] for row in ROWS]

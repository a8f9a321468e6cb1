"""Data sets that people have saved with `save_to_disk` of `datasets`."""

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from preferences.__main__ import main
from preferences.reader import MalformedDataError, Problems
from preferences.source_params import SourceParams
from preferences.sources import gather, rows_at

ROWS = [{"prompt": f"p{n}", "chosen": "yes", "rejected": "no"} for n in range(5)]


def read(path: Path, split: str = "train") -> list[str]:
    (found,) = gather([SourceParams(path=str(path), split=split)], heldout_fraction=0.0)
    return [row.prompt for row in found.rows]


def test_a_data_set_that_was_saved_is_read(tmp_path: Path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path, num_shards=2)
    assert read(tmp_path) == [row["prompt"] for row in ROWS]


def test_of_several_splits_the_one_that_is_named_is_read(tmp_path: Path):
    splits = {"train": Dataset.from_list(ROWS[:2]), "test": Dataset.from_list(ROWS[2:])}
    DatasetDict(splits).save_to_disk(tmp_path)
    assert read(tmp_path) == ["p0", "p1"]
    assert read(tmp_path, "test") == ["p2", "p3", "p4"]
    with pytest.raises(MalformedDataError, match=r"no split .validation., expected one of"):
        read(tmp_path, "validation")


@pytest.mark.parametrize("layout", ["saved", "hub"])
def test_own_rows_of_another_split_are_read_where_the_error_says(tmp_path: Path, layout: str):
    """Own prompts and demonstrations have no key for a split; UltraChat's is called train_sft."""
    rows = Dataset.from_list(ROWS[:2])
    if layout == "saved":
        DatasetDict({"train_sft": rows, "test_sft": rows}).save_to_disk(tmp_path)
        inside = tmp_path / "train_sft"
    else:
        (tmp_path / "data").mkdir()
        inside = tmp_path / "data/train_sft-00000-of-00001.parquet"
        rows.to_parquet(inside)
    with pytest.raises(MalformedDataError) as error:
        list(rows_at(tmp_path, Problems()))
    said = str(error.value)
    assert "train_sft" in said
    assert said.endswith(
        "; name one by split (prepare.sources) or --split, or name its own folder or file"
    )
    assert [found.row["prompt"] for found in rows_at(inside, Problems())] == ["p0", "p1"]


def test_a_saved_data_set_that_is_damaged_is_named(tmp_path: Path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path)
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(MalformedDataError, match="cannot be loaded"):
        read(tmp_path)


@pytest.mark.parametrize("layout", ["saved", "hub"])
def test_check_reads_what_prepare_reads(tmp_path: Path, capsys, layout: str):
    rows = [
        {"prompt": f"How far is it to {n}?", "chosen": f"It is {n} miles.", "rejected": f"Ask {n}."}
        for n in range(40)
    ]
    if layout == "saved":
        DatasetDict({"test": Dataset.from_list(rows)}).save_to_disk(tmp_path)
    else:
        (tmp_path / "data").mkdir()
        Dataset.from_list(rows).to_parquet(tmp_path / "data/test-00000-of-00001.parquet")
    assert main(["check", str(tmp_path), "--split", "test"]) == 0
    assert "format trl, 40 pairs" in capsys.readouterr().out
    assert main(["check", str(tmp_path)]) == 2
    assert "train" in capsys.readouterr().err

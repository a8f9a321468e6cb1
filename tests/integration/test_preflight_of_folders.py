"""What is found in own pairs that lie in folders of Hugging Face before the first stage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from tests.integration.own_place import Place, asked_in, pairs, write_rows


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def in_layout_of_the_hub(folder: Path, rows: list[dict[str, Any]]) -> None:
    write_rows(folder / "data/train-00000-of-00001.jsonl", rows)


def saved(folder: Path, rows: list[dict[str, Any]]) -> None:
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(folder)


@pytest.mark.parametrize("write", [in_layout_of_the_hub, saved])
def test_pairs_in_a_folder_of_hugging_face_are_examined_as_others_are(
    place: Place, write: Callable[[Path, list[dict[str, Any]]], None]
):
    leaking = [*asked_in(place, "test"), *asked_in(place, "heldout")]
    write(place.root / "own/pairs", pairs([*leaking, "w58 w59"]))
    # As DVC has it that tracks the folder, which is here nevertheless.
    (place.root / "own/pairs.dvc").write_text("outs:\n")
    source = {"path": "own/pairs"}
    place.values["prepare"] |= {"sources": [source], "heldout_preferences": 0.0}

    (leak,) = place.preflight()

    what = f"{len(leaking)} of {len(leaking) + 1} pairs are for training and have prompts"
    assert leak.startswith(f"prepare.sources.0: {what}")
    source["split"] = "trian"
    (missing,) = place.preflight()
    assert missing.startswith("prepare.sources.0: own/pairs: cannot be loaded (")
    assert "trian" in missing


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("nothing", "own/pairs: no data file in this folder"),
        ("no row", "own/pairs: holds no row"),
        ("another format", "own/pairs train row 1: columns of no known format (answer, question)"),
        ("a script", "own/pairs: cannot be loaded (Dataset scripts are no longer supported"),
    ],
)
def test_a_folder_without_pairs_is_reported(place: Place, kind: str, problem: str):
    folder = place.root / "own/pairs"
    folder.mkdir()
    if kind == "no row":
        saved(folder, [])
    elif kind == "another format":
        saved(folder, [{"question": "w1", "answer": "w2"}])
    elif kind == "a script":
        (folder / "pairs.py").write_text("import datasets\n")
    place.values["prepare"]["sources"] = [{"path": "own/pairs"}]

    (found,) = place.preflight()

    assert found.startswith(f"prepare.sources.0: {problem}")

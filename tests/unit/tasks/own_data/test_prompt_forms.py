"""Prompts that came in another form than was meant, as the preflight finds them in files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from preferences.source_params import SourceParams
from tasks.own_data.checks import OwnData, examine
from tasks.params.loading import load_params

ROOT = Path(__file__).resolve().parents[4]

USER = {"role": "user", "content": "Where's my parcel?"}
YES, NO = ({"role": "assistant", "content": said} for said in ("It is on its way.", "No idea."))


def examined(root: Path, name: str) -> OwnData:
    """What the preflight finds in a file of pairs."""
    params = load_params(ROOT / "params.yaml")
    prepare = replace(params.prepare, sources=(SourceParams(path=name),))
    return examine(replace(params, prepare=prepare), root)


def of_form(found: list[str]) -> list[str]:
    return [one for one in found if "messages written into a text" in one]


@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": [USER], "chosen": [YES], "rejected": [NO]}],
        [{"chosen": [USER, YES], "rejected": [USER, NO]}],
        [{"prompt": [{"from": "human", "value": "Hi"}], "chosen": "a", "rejected": "b"}],
    ],
    ids=["explicit", "implicit", "spelt otherwise"],
)
def test_messages_that_pandas_wrote_into_csv_are_refused(tmp_path: Path, rows: Any) -> None:
    """It writes lists as Python shows them, which is no JSON, so each cell would be a text."""
    pd.DataFrame(rows * 2).to_csv(tmp_path / "pairs.csv", index=False)

    ((key, problem),) = examined(tmp_path, "pairs.csv").problems

    assert key == "prepare.sources.0"
    assert problem.startswith("all 2 prompts are messages written into a text ([{'role': ...)")


def test_json_in_a_text_is_refused_where_all_prompts_are_so_and_else_noted(tmp_path: Path) -> None:
    """One may ask what is wrong with such a list."""
    pair = {"prompt": json.dumps([USER]), "chosen": "a", "rejected": "b"}
    other = {**pair, "prompt": 'What is [{"role": "user"}]?'}
    for name, rows in (("all.jsonl", [pair]), ("some.jsonl", [pair, other])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    every, some = (examined(tmp_path, name) for name in ("all.jsonl", "some.jsonl"))

    assert len(every.problems) == 1
    assert some.problems == []
    (note,) = of_form(some.notes)
    assert note.startswith("prepare.sources.0: 1 of 2 prompts are messages written into a text")


def test_a_list_of_anything_else_is_a_text_as_any(tmp_path: Path) -> None:
    asked = ['[{"from": "Rome", "to": "Oslo"}]', "[1]", '[{"content": "Kim?"}]', "[link](x)"]
    rows = [{"prompt": prompt, "chosen": "a", "rejected": "b"} for prompt in asked]
    pd.DataFrame(rows).to_csv(tmp_path / "pairs.csv", index=False)

    found = examined(tmp_path, "pairs.csv")

    assert found.problems == []
    assert of_form(found.notes) == []


def test_prompts_that_end_with_the_assistant_are_noted(tmp_path: Path) -> None:
    """Whole conversations in the place of prompts: the policy would respond to its own answer."""
    pair = {"prompt": [USER, YES], "chosen": [YES], "rejected": [NO]}
    rows = [pair, {**pair, "prompt": [USER, YES, USER]}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    notes = examined(tmp_path, "pairs.jsonl").notes

    (note,) = (one for one in notes if "turn of the assistant" in one)
    assert note.startswith("prepare.sources.0: 1 of 2 prompts end with a turn of the assistant")

"""What the preflight's checks of rows cost."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preferences.records import pair_id, text_hash
from preferences.source_params import SourceParams
from preferences.splitting import split_of
from tasks.own_data.checks import OwnData, examine
from tasks.params.loading import load_params
from tasks.params.prepare import FilesParams

ROOT = Path(__file__).resolve().parents[4]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_evaluation_prompts_are_put_together_once_for_a_file_and_not_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 60,000 pairs and demonstrations that took minutes, with 200,000 an hour."""
    asked = [f"w{n} w{n // 2}" for n in range(50)]
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": one} for one in asked])
    said = [{"prompt": one, "response": "w1"} for one in asked]
    write_rows(tmp_path / "demonstrations.jsonl", said)
    pairs = [{"prompt": one, "chosen": "w1", "rejected": "w2"} for one in asked]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    files = FilesParams(prompts="prompts.jsonl", demonstrations="demonstrations.jsonl")
    params = load_params(ROOT / "params.yaml")
    prepare = replace(params.prepare, files=files, sources=(SourceParams(path="pairs.jsonl"),))
    times: list[int] = []

    def counted(_: OwnData) -> set[str]:
        times.append(1)
        return {"w1 w0"}

    monkeypatch.setattr(OwnData, "evaluation", property(counted))

    found = examine(replace(params, prepare=prepare), tmp_path)

    assert "1 of 50 demonstrations answer prompts" in "".join(found.notes)
    assert len(times) == 2


def test_a_prompt_that_two_files_put_on_different_sides_is_found_before_the_first_stage(
    tmp_path: Path,
) -> None:
    """Each file alone is sound; the gate, which sees them together, blocks after base and SFT."""
    asked = [f"question {number}" for number in range(40)]
    mine = [
        {"prompt_id": text_hash(one), "prompt": one, "chosen": "x", "rejected": "y",
         "pair_id": pair_id(one, "x", "y"), "margin": 0.0, "weight": 1.0, "source": "",
         "round": "", "split": "train"}
        for one in asked
    ]  # fmt: skip
    write_rows(tmp_path / "mine.jsonl", mine)
    others = [{"prompt": one, "chosen": "u", "rejected": "v"} for one in asked]
    write_rows(tmp_path / "others.jsonl", others)
    params = load_params(ROOT / "params.yaml")
    share = params.prepare.heldout_preferences
    heldout = sum(split_of(one, heldout_fraction=share) == "heldout" for one in asked)
    assert heldout > 1
    sources = tuple(SourceParams(path=name) for name in ("mine.jsonl", "others.jsonl"))

    found = examine(replace(params, prepare=replace(params.prepare, sources=sources)), tmp_path)

    ((key, problem),) = found.problems
    assert key == "prepare.sources.1"
    assert problem.startswith(
        f"{heldout} prompts are on the train side and on the held-out side of this file and those "
        "named before it; the gate of the first round would block"
    )
    for one in sources:
        alone = replace(params, prepare=replace(params.prepare, sources=(one,)))
        assert examine(alone, tmp_path).problems == []


def test_columns_that_are_not_read_are_named_before_the_first_stage(tmp_path: Path) -> None:
    """What the system says in a column of its own is in no prompt; a misspelt weight counts 1."""
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": f"w{n}"} for n in range(50)])
    turns = [{"from": "human", "value": "Kim?"}, {"from": "gpt", "value": "Sam."}]
    said = [{"system": "Be kind.", "conversations": turns}, {"prompt": "Kim?", "response": "Yes."}]
    write_rows(tmp_path / "demonstrations.jsonl", said)
    pair = {"prompt": "Kim?", "chosen": "x", "rejected": "y"}
    write_rows(tmp_path / "pairs.jsonl", [pair | {"wieght": 0.5, "system": "Be kind."}])
    write_rows(tmp_path / "all_read.jsonl", [pair | {"weight": 0.5}])
    files = FilesParams(prompts="prompts.jsonl", demonstrations="demonstrations.jsonl")
    params = load_params(ROOT / "params.yaml")
    sources = (SourceParams(path="pairs.jsonl"), SourceParams(path="all_read.jsonl"))

    prepare = replace(params.prepare, files=files, sources=sources)
    notes = examine(replace(params, prepare=prepare), tmp_path).notes

    assert [note for note in notes if "not read" in note] == [
        'prepare.files.demonstrations: columns that are not read: "system"',
        'prepare.sources.0: columns that are not read: "system", "wieght"',
    ]


@pytest.mark.parametrize("name", ["prompts", "demonstrations", "corpus"])
def test_a_file_without_a_row_is_found_before_the_first_stage(tmp_path: Path, name: str) -> None:
    """As a filter leaves it that nothing passes; without demonstrations, SFT ended behind base."""
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": f"w{n}"} for n in range(50)])
    write_rows(tmp_path / "demonstrations.jsonl", [{"prompt": "Kim?", "response": "Yes."}])
    write_rows(tmp_path / "corpus.jsonl", [{"text": "w1"}])
    write_rows(tmp_path / f"{name}.jsonl", [])
    files = FilesParams(
        prompts="prompts.jsonl", demonstrations="demonstrations.jsonl", corpus="corpus.jsonl"
    )
    params = load_params(ROOT / "params.yaml")
    sample, label = replace(params.sample, pairs=10), replace(params.label, annotators="people")
    prepare = replace(params.prepare, files=files)

    found = examine(replace(params, prepare=prepare, sample=sample, label=label), tmp_path)

    assert found.problems == [(f"prepare.files.{name}", f"{name}.jsonl: no row in it")]

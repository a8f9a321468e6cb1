"""Your own preferences as sources of `prepare`: mixed, weighed, split, refused, left out."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.own_place import Place, place_fixture, rows, write_rows  # noqa: F401
from tests.word_models import write_chat_model

pytestmark = pytest.mark.long


def source_rows(word: str, count: int) -> list[dict[str, Any]]:
    """Pairs as others write them, without ids or sides."""
    return [
        {"prompt": f"{word} w{n}", "chosen": f"w{n} w1", "rejected": f"w{n} w2"}
        for n in range(count)
    ]


def test_a_mix_of_sources_is_read_weighed_and_split_by_prompt(place: Place):
    votes = {"prompt": "w9", "response_a": "w1", "response_b": "w2", "workers": ["x", "y"]}
    write_rows(place.root / "own/pairs.jsonl", source_rows("w50", 40))
    write_rows(
        place.root / "own/votes/a.jsonl",
        [{**votes, "votes": ["a", "a"]}, {**votes, "prompt": "w8", "votes": ["a", "b"]}],
    )
    # As the hub has it: a card, and the splits below data/.
    hub = place.root / "own/hub"
    write_rows(hub / "data/train-00000-of-00001.jsonl", source_rows("w51", 20))
    (hub / "README.md").write_text("A data set.\n")
    place.values["prepare"] |= {
        "heldout_preferences": 0.25,
        "sources": [
            {"path": "own/pairs.jsonl", "weight": 0.5},
            {"path": "own/votes"},
            {"path": "own/hub", "weight": 2.0},
        ],
    }

    code, err = place.run("prepare")

    assert code == 0, err
    folder = place.root / "data/prepared/preferences"
    sides = {split: rows(folder / f"{split}.jsonl") for split in ("train", "heldout")}
    found = [row for side in sides.values() for row in side]
    assert len(found) == 40 + 2 + 20
    assert [row["label"] for row in found if "label" in row] == [0.5], "the gate drops ties"
    assert {(row["source"], row["weight"]) for row in found} == {
        ("own/pairs.jsonl", 0.5),
        ("own/votes", 1.0),
        ("own/hub", 2.0),
    }
    # A quarter of 62 prompts; four standard deviations are 13.6.
    assert 2 <= len(sides["heldout"]) <= 29
    assert all(row["split"] == split for split, side in sides.items() for row in side)
    counts = [(row["pairs"], row["ties"]) for row in rows(folder / "sources.jsonl")]
    assert counts == [(40, 0), (1, 1), (20, 0)]

    # More rows of a source, and every prompt stays on its side.
    write_rows(place.root / "own/pairs.jsonl", source_rows("w50", 80))
    assert place.run("prepare")[0] == 0
    later = {
        row["prompt"]: split
        for split in ("train", "heldout")
        for row in rows(folder / f"{split}.jsonl")
    }
    assert len(later) == 80 + 2 + 20
    assert all(later[row["prompt"]] == row["split"] for row in found)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"path": "own/none.jsonl"}, "own/none.jsonl: no such file or folder"),
        ({"path": "own/tracked"}, "own/tracked: not present; run `dvc pull own/tracked`"),
        ({"path": "own/x.jsonl", "revision": "0" * 7}, "own/x.jsonl: sha256 is "),
        ({"path": "own/layout", "revision": "0" * 7}, "own/layout: a folder cannot be pinned"),
        ({"path": "own/bad.jsonl"}, 'own/bad.jsonl:2: field "chosen": missing'),
        ({"path": "own/x.jsonl", "wieght": 2}, "prepare.sources.0.wieght: unknown key"),
        ({"path": "own/x.jsonl", "weight": 0}, "weight is 0.0, expected above 0"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_and_nothing_is_written(
    place: Place, source: dict[str, Any], problem: str
):
    write_rows(place.root / "own/x.jsonl", source_rows("w1", 3))
    write_rows(
        place.root / "own/bad.jsonl", [source_rows("w1", 1)[0], {"prompt": "p", "rejected": "b"}]
    )
    (place.root / "own/tracked.dvc").write_text("outs:\n")
    (place.root / "own/layout/data").mkdir(parents=True)
    write_rows(place.root / "own/layout/data/train.jsonl", source_rows("w1", 3))
    place.values["prepare"]["sources"] = [source]

    code, err = place.run("prepare")

    assert code == 2
    assert problem in err
    assert "Traceback" not in err
    assert place.made() == []


def test_preferences_in_another_format_are_sent_to_prepare_sources(place: Place):
    write_rows(place.root / "own/pairs.jsonl", source_rows("w1", 3))
    place.values["prepare"]["files"]["preferences"] = "own/pairs.jsonl"

    code, err = place.run("prepare")

    assert code == 2
    assert "own/pairs.jsonl: found the format trl, expected preferences" in err
    assert "sources: [{path: own/pairs.jsonl}]" in err
    assert "missing" not in err
    assert place.made() == []


def test_demonstrations_and_pairs_that_are_left_out_are_said_on_the_screen(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    demonstrations = rows(place.root / "own/demonstrations.jsonl")
    for row in demonstrations[:30]:
        row["response"] = "w1 " * 40
    write_rows(place.root / "own/demonstrations.jsonl", demonstrations)
    place.values["sft"]["max_tokens"] = 30
    votes = {"prompt": "w9", "response_a": "w1", "response_b": "w2", "workers": ["x", "y"]}
    skipped = [{**votes, "prompt": f"w{n}", "votes": ["skip", "skip"]} for n in range(2)]
    write_rows(place.root / "own/votes.jsonl", [{**votes, "votes": ["a", "a"]}, *skipped])
    place.values["prepare"]["sources"] = [{"path": "own/votes.jsonl"}]

    said = {stage: place.run(stage) for stage in ("prepare", "base", "sft")}

    assert {code for code, _ in said.values()} == {0}, said
    assert (
        "WARNING: 2 of 3 pairs left out (67 %): own/votes.jsonl: 2 skipped, 0 without an opponent\n"
        in said["prepare"][1]
    )
    assert (
        "WARNING: 30 of 50 demonstrations left out (60 %): more than 30 tokens (sft.max_tokens)\n"
        in said["sft"][1]
    )


def test_nan_in_a_mapped_data_set_of_the_hub_is_null(place: Place):
    answers = [("w1", 4.0), ("w2", 2.0), ("w3", float("nan"))]
    completions = [{"response": said, "fine-grained_score": score} for said, score in answers]
    file = place.root / "own/hub/data/train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    row = {"instruction": "w9", "completions": completions}
    pq.write_table(pa.Table.from_pylist([row]), file)
    place.values["prepare"]["sources"] = [{"path": "own/hub", "map": "ultrafeedback"}]

    code, err = place.run("prepare")

    assert code == 0, err
    (counts,) = rows(place.root / "data/prepared/preferences/sources.jsonl")
    assert (counts["pairs"], counts["without_opponent"]) == (1, 1)

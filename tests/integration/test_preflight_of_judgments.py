"""What is found in the file of judgments that `label` is to take before the first stage."""

import json
from pathlib import Path

import pytest

from tasks.own_data.preflight import check_inputs
from tasks.params.loading import load_params
from tests.integration.own_place import Place, write_rows


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            json.dumps({"prompt": "w1", "chosen": "w1", "rejected": "w2"}).encode(),
            "own/judged.jsonl:1: unknown key 'chosen', expected judgment_id, pair_id, round",
        ),
        ('{"pair_id": "x"}'.encode("utf-16"), "own/judged.jsonl: not UTF-8 at byte 0"),
        (b'{"pair_id": "x"}\n', "own/judged.jsonl:1: round is None, expected a text"),
        (b'[{"chosen": "w1"}]', "own/judged.jsonl: task 1 has no data; expected Label Studio"),
    ],
    ids=["pairs", "UTF-16", "without a round", "an export of others"],
)
def test_a_file_of_judgments_that_cannot_be_read_is_reported(
    place: Place, content: bytes, problem: str
):
    place.values["label"] = {"annotators": "file", "file": "own/judged.jsonl"}
    (place.root / "own/judged.jsonl").write_bytes(content)

    (found,) = place.preflight()

    assert found.startswith(f"label.file: {problem}")


def test_sound_judgments_and_none_yet_are_fine(place: Place):
    place.values["label"] = {"annotators": "file", "file": "own/judged.jsonl"}
    judged = {
        "pair_id": "x", "round": "r1", "annotator_id": "ana", "annotator_version": "g1",
        "kind": "human", "choice": "a", "shown_order": "AB",
    }  # fmt: skip
    for rows in ([], [judged]):
        write_rows(place.root / "own/judged.jsonl", rows)
        check_inputs(load_params(place.save()), place.root)
    (place.root / "own/judged.jsonl").write_bytes(b"[]")
    check_inputs(load_params(place.save()), place.root)

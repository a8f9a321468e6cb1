"""Rows for the preference gate, and the gate itself with a folder for its reports."""

import pytest

from preferences.gate import run_gate
from preferences.judging import Judged
from preferences.params import ValidateParams
from preferences.records import Preference, Sourced, pair_id

PARAMS = ValidateParams(heldout_fraction=0.25, min_rows=10, max_quarantined_fraction=0.5)


def sourced(prompt, chosen, rejected, *, split="train", where="x.jsonl:1"):
    row = Preference(
        pair_id=pair_id(prompt, chosen, rejected), prompt_id=f"id of {prompt}", prompt=prompt,
        chosen=chosen, rejected=rejected, split=split, round="r1", source="human",
    )  # fmt: skip
    return Sourced(row, where)


def good(count, *, start=0):
    return [
        sourced(f"Question {n}?", f"Answer {n}.", f"No idea {n}.")
        for n in range(start, start + count)
    ]


@pytest.fixture(name="gate")
def gate_fixture(tmp_path):
    def gate(fresh, earlier=(), evaluation=(), params=PARAMS, **more):
        judged = fresh if isinstance(fresh, Judged) else Judged(rows=tuple(fresh))
        return run_gate(judged, earlier, evaluation, params, report_dir=tmp_path, **more)

    return gate

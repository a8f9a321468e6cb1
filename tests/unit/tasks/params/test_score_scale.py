"""Which rounds have their scores scaled by a few responses of SFT."""

from typing import Any

import pytest

from tasks.params.loading import load_params
from tasks.params.score_scale import scale_notes
from tests.unit.tasks.params.conftest import ParamsFile


def notes(params: ParamsFile, **changes: Any) -> list[str]:
    for key, value in changes.items():
        params.set(key.replace("__", "."), value)
    params.write()
    given = load_params(params.path)
    return list(scale_notes(given.sample, given.reward, given.rounds))


def test_a_scale_by_a_handful_of_responses_is_noted_with_the_share_that_gives_two_dozen(
    params: ParamsFile,
) -> None:
    """Of 30 pairs a share of 0.8 is 24; of 70 one of 0.35 is 24.5, and 0.34 only 23.8."""
    (note,) = notes(params, sample__pairs=30)
    assert note.startswith(
        "sample.against_sft: 0.1 of 30 pairs has 3 of SFT's responses, which set"
    )
    assert "in r2 and later rounds" in note
    assert note.endswith("ppo.kl_coef weighs: raise it to 0.8 or sample.pairs to 240")

    (note,) = notes(params, sample__pairs=70)
    assert note.endswith("raise it to 0.35 or sample.pairs to 240")

    (note,) = notes(params, sample__pairs=20)
    assert note.endswith("weighs: raise sample.pairs to 240")


@pytest.mark.parametrize(
    "changes",
    [
        {"sample__pairs": 240},
        {"sample__pairs": 24, "sample__against_sft": 1.0},
        # The first round's responses are all SFT's.
        {"sample__pairs": 30, "final": "r1", "rounds": "r1"},
        # The scale of the first round stays.
        {"sample__pairs": 30, "reward__retrain": False},
        {
            "sample__pairs": 30, "reward__model": "none", "ppo__rewards": {
                "learned": 0.0, "length": 1.0
            }, "ppo__value_init": "zero",
        },
    ],
)  # fmt: skip
def test_a_scale_by_two_dozen_or_by_all_of_a_rounds_responses_is_not(
    params: ParamsFile, changes: dict[str, Any]
) -> None:
    if "rounds" in changes:
        changes |= {"rounds": {"r1": params.values["rounds"]["r1"]}}
    assert not notes(params, **changes)

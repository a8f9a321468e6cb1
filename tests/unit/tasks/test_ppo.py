"""Stage `ppo`: the names of its curves."""

import dataclasses

from rlhf.ppo import PPOMetrics
from tasks.ppo import CURVES, curves

FIELDS = [field.name for field in dataclasses.fields(PPOMetrics) if field.name != "components"]
COUNTS = ("optimiser_steps", "skipped_passes", "tokens")
NUMBERS = {name: number if name in COUNTS else float(number) for number, name in enumerate(FIELDS)}


def test_every_figure_of_an_iteration_has_a_curve():
    assert curves(PPOMetrics(**NUMBERS, components={})) == {
        CURVES[name]: value for name, value in NUMBERS.items()
    }


def test_the_parts_of_a_mixed_score_have_curves_of_their_own():
    made = curves(PPOMetrics(**NUMBERS, components={"learned": 0.5, "sentiment": -2.0}))
    plain = set(CURVES.values())
    assert {name: value for name, value in made.items() if name not in plain} == {
        "objective/learned": 0.5,
        "objective/rule_sentiment": -2.0,
    }

"""The goals on the page of benchmarks: bounds, and what is said where nothing was measured."""

from benchmarks import speed_goals
from benchmarks.speed_numbers import Row
from tests.unit.test_speed_page import iteration


def row_of(work: str, lengths: str, ours: dict[str, object], trl: dict[str, object]) -> Row:
    row = {"size": "135M", "lengths": lengths, "precision": "float32", "bits": "b", "machine": "m"}
    return row | {"work": work, "ends": "unequal", "ours": [ours], "trl": [trl]}


def test_a_goal_is_met_from_its_bound_on_and_says_where_the_work_was_not_equal():
    # 1.9 times, exactly; 60 % of the memory, exactly; 0.84 of the ceiling: 1.68e9 in 1 s of 2e9.
    at_bound = row_of(
        "ppo-separate", "ragged",
        iteration(10.0, 1.0, flops=1.68e9) | {"peak": 600},
        iteration(19.0, 1.0) | {"peak": 1000},
    )  # fmt: skip
    lines = list(speed_goals.section("cpu", [at_bound], "equal"))
    place = "135M | ragged | float32 | b | m |"
    ratio = f"| PPO iteration, separate value model, TRL / ours | {place} at least 1.90 | 1.90 †"
    assert f"{ratio} | yes |" in lines
    memory = f"| peak memory of PPO, separate value model, ours / TRL | {place} at most 60% | 60% †"
    assert f"{memory} | yes |" in lines
    share = f"| update of PPO, share of the ceiling | {place} at least 85% | 84%"
    assert f"{share} | **no** |" in lines
    assert lines[-1].startswith("† ")
    slower = row_of("ppo-separate", "ragged", iteration(10.0, 1.0), iteration(18.9, 1.0))
    section = speed_goals.section("cpu", [slower | {"ends": "equal"}], "equal")
    assert f"{ratio.removesuffix(' 1.90 †')} 1.89 | **no** |" in section


def test_what_was_not_measured_on_a_gpu_is_said_of_every_goal():
    table = [line for line in speed_goals.section("cuda", [], "equal") if line.startswith("| ")][1:]
    assert all(line.endswith("| not measured | – |") for line in table)
    wanted = {line.split(" | ")[6] for line in table}
    assert wanted == {"at least 50%", "at least 40%", "at least 4.00", "yes"}

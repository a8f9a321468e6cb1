"""The table at the end of a sweep."""

from flows.sweep import paired_rows


def test_differences_are_paired_by_seed_with_students_interval():
    base = {0: {"gold": 5.0, "kl": 3.0}, 1: {"gold": 7.0, "kl": 3.0}, 2: {"gold": 6.0}}
    kl = {0: {"gold": 5.5, "kl": 2.0}, 1: {"gold": 8.5, "kl": 2.5}, 2: {"gold": 6.1}}
    one = {1: {"gold": 6.0, "kl": 4.0}}
    rows = paired_rows({"base": base, "kl010": kl, "one": one, "none": {}})
    # Differences 0.5, 1.5, 0.1: mean 0.7, s = 0.72111; t(2) = 4.30265; half = 1.79135.
    # KL: -1.0, -0.5: mean -0.75, s = 0.353553; t(1) = 12.7062; half = 3.17655.
    assert rows == [
        row("base", "3", gold="6.000", kl="3.000"),
        row("kl010", "3", gold="6.700", kl="2.250",
            gold_from="+0.700 [-1.091, +2.491]", kl_from="-0.750 [-3.927, +2.427]"),
        row("one", "1", gold="6.000", kl="4.000", gold_from="-1.000", kl_from="+1.000"),
        row("none", "0"),
    ]  # fmt: skip


def row(change: str, seeds: str, **cells: str) -> dict[str, str]:
    return {
        "change": change,
        "seeds": seeds,
        "gold score (of 10)": cells.get("gold", "-"),
        "gold score (of 10), difference": cells.get("gold_from", "-"),
        "win rate vs SFT": "-",
        "win rate vs SFT, difference": "-",
        "KL to SFT": cells.get("kl", "-"),
        "KL to SFT, difference": cells.get("kl_from", "-"),
    }


def test_a_difference_that_rounds_to_nothing_has_no_minus():
    base, other = {0: {"gold": 8.0}}, {0: {"gold": 8.0 - 1e-5}}
    (_, same) = paired_rows({"base": base, "same": other})
    assert same["gold score (of 10), difference"] == "+0.000"

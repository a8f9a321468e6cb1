"""Tables and README's block from records."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.descriptions import Experiment
from experiments.pages import END, START, page, put_into_readme, readme_table, write_page

EXPERIMENT = Experiment(
    name="mine",
    question="Which?",
    budget="little",
    seeds=[0, 1, 2],
    variants={"default": {}, "other": {}},
    common={},
    fit="gold_over_kl",
)


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 9}


def record(variant: str, seed: int, gold: float, kl: float, state: str = "Completed") -> dict:
    policies = [
        {"name": name, "gold": interval(g), "win_rate_vs_sft": interval(0.5), "kl": interval(k)}
        for name, g, k in (("sft", 4.0, 0.0), ("r1", gold, kl))
    ]
    reward = {
        "round": "r1", "accuracy_before": interval(0.6), "accuracy_after": interval(0.5 + seed / 9)
    }  # fmt: skip
    return {
        "variant": variant, "seed": seed, "state": state, "message": "why", "seconds": 1800.0,
        "policies": policies, "reward_models": [reward], "explained_variance": {"r1": 0.7},
        "test": policies[-1],
    }  # fmt: skip


RECORDS = [
    record("default", 0, 8.0, 1.0), record("default", 1, 9.0, 4.0),
    record("default", 2, 8.5, 2.0), record("other", 1, 9.5, 9.0), record("other", 0, 8.7, 3.0),
    record("other", 2, 1.0, 1.0, state="Stopped"),
]  # fmt: skip


def row(text: str, *start: str) -> list[str]:
    (line,) = (x for x in text.splitlines() if x.startswith(f"| {' | '.join(start)} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_mean_extremes_and_the_interval_of_a_new_seed():
    # Mean 8.5, s 0.5, t 4.3027; t s / sqrt(3) = 1.2421 and t s sqrt(4 / 3) = 2.4841: 10.98, but no
    # gold is above 10.
    assert row(page(EXPERIMENT, RECORDS), "gold", "default")[2:] == [
        "3", "8.50 [7.26, 9.74]", "8.00", "9.00", "[6.02, 10.00]",
    ]  # fmt: skip


def test_the_intervals_of_a_win_rate_end_at_0_and_1():
    # 0.2 and 0.9: mean 0.55, s 0.495, t 12.7062; both intervals reach beyond either end. Of 0.5
    # and 0.52 the mean's is 0.51 ± 0.1271, and the next seed's 0.51 ± 0.2201, well inside.
    def rates(*found: float) -> list[str]:
        records = [record("default", seed, 8.0, 1.0) for seed in range(len(found))]
        for one, rate in zip(records, found, strict=True):
            one["policies"][-1]["win_rate_vs_sft"] = interval(rate)
        text = page(EXPERIMENT, records)
        assert "a win rate from 0 to 1" in text
        return row(text, "win rate against SFT", "default")[3:]

    assert rates(0.2, 0.9) == ["0.55 [0.00, 1.00]", "0.20", "0.90", "[0.00, 1.00]"]
    assert rates(0.5, 0.52) == ["0.51 [0.38, 0.64]", "0.50", "0.52", "[0.29, 0.73]"]


def test_each_figure_is_its_own():
    """Of the final policy, of SFT, of the test prompts, of the worst round."""
    records = [record("default", seed, 8.0 + seed, 1.0) for seed in (0, 1)]
    for one in records:
        one["policies"][0]["gold"] = interval(4.0 + one["seed"] / 2)
        one["test"] = {"policy": "r1", "gold": interval(7.0 + one["seed"] / 5)}
        one["explained_variance"] = {"r1": -0.25 + one["seed"] / 4, "r2": 0.75}
    text = page(EXPERIMENT, records)

    def mean(title: str) -> str:
        return row(text, title, "default")[3].partition(" ")[0]

    assert mean("gold") == "8.50"
    assert mean("gold on the test prompts") == "7.10"
    assert mean("gold of SFT") == "4.25"
    # Mean -0.125 and s 0.1768, t 12.7062: 12.7062 * 0.1768 / sqrt(2) = 1.588 and, of a new seed,
    # 12.7062 * 0.1768 * sqrt(3 / 2) = 2.751: below 0, and not above 1.
    assert row(text, "explained variance at the end of a round, the least", "default")[2:] == [
        "2", "-0.12 [-1.71, 1.00]", "-0.25", "0.00", "[-2.88, 1.00]",
    ]  # fmt: skip


def test_the_intervals_of_kl_end_at_0():
    # 1, 4 and 2: mean 2.333, s 1.5275, t 4.3027: 3.7946 for the mean and 7.5892 for a new seed.
    assert row(page(EXPERIMENT, RECORDS), "KL to SFT, nats", "default")[3:] == [
        "2.33 [0.00, 6.13]", "4.00", "1.00", "[0.00, 9.92]",
    ]  # fmt: skip


def test_a_single_seed_has_its_figure_and_no_interval():
    text = page(EXPERIMENT, RECORDS[:1])
    assert row(text, "gold", "default")[2:] == ["1", "8.00", "–", "–", "–"]
    assert row(text, "gold", "other")[2:] == ["0", "–", "–", "–", "–"]


def fitted(form: Callable[[float], float]) -> list[list[str]]:
    """The rows of both fits to five policies on a curve, from SFT's 4.0."""
    kls = (0.25, 1.0, 2.25, 4.0, 9.0)
    records = [
        record("default", seed, 4.0 + form(math.sqrt(kl)), kl) for seed, kl in enumerate(kls)
    ]
    text = page(replace(EXPERIMENT, seeds=list(range(5))), records)
    return [row(text, f"d (α − β {name}d)") for name in ("", "log ")]


def test_a_fit_gives_the_curve_on_which_the_policies_lie():
    assert fitted(lambda d: d * (3.0 - 0.5 * d))[0][1:] == ["3.000", "0.500", "0.000"]
    assert fitted(lambda d: d * (2.0 - 0.25 * math.log(d)))[1][1:] == ["2.000", "0.250", "0.000"]


def test_two_distances_are_too_few_for_a_fit():
    assert "least squares" not in page(EXPERIMENT, RECORDS[:2])


def test_the_worst_kl_is_the_largest():
    assert row(page(EXPERIMENT, RECORDS), "KL to SFT, nats", "default")[4:6] == ["4.00", "1.00"]


def test_differences_are_paired_by_seed_and_leave_out_runs_that_stopped():
    # 0.7 and 0.5: mean 0.6, s 0.1414, t 12.7062: 12.7062 * 0.1414 / sqrt(2) = 1.2706
    cells = row(page(EXPERIMENT, RECORDS), "other", "0: +0.70, 1: +0.50")
    assert cells[2] == "+0.60 [-0.67, +1.87]"


def test_a_run_that_stopped_and_one_that_is_missing_come_first():
    text = page(EXPERIMENT, RECORDS[:2] + RECORDS[3:])
    head = text.partition("![")[0]
    assert "- other, seed 2: Stopped: why" in head
    assert "- not run yet: default seed 2" in head
    assert "5 runs, 2.5 hours" in head
    assert head.count("other, seed 2") == 1


def test_what_is_odd_about_runs_is_said_before_their_figures():
    usual = {"message": "All 25 stages are up to date.", "recipe": "a"}
    found = [one | usual for one in RECORDS[:3]]
    assert "To know of them" not in page(EXPERIMENT, found)

    found[1] |= {"message": "Blocked at first.", "recipe": "b"}
    head = page(EXPERIMENT, [*found, record("default", 9, 2.0, 1.0) | usual]).partition("![")[0]
    assert head.splitlines()[-4:] == [
        "- default, seed 1: Blocked at first.",
        "- not counted, since it was not decided beforehand: seed 9",
        "- default: not all known to be of one code and params: seed 0, 2; 1",
        "",
    ]


def test_a_seed_that_was_not_decided_beforehand_changes_no_figure():
    with_another = page(EXPERIMENT, [*RECORDS, record("default", 9, 2.0, 1.0)])
    assert row(with_another, "gold", "default") == row(page(EXPERIMENT, RECORDS), "gold", "default")


def test_retrainings_that_helped_are_counted_and_copies_are_none():
    assert row(page(EXPERIMENT, RECORDS), "default")[1] == "2 of 3"

    copied = json.loads(json.dumps(RECORDS))
    (first,) = copied[0]["reward_models"]
    # A first round has no model before; a copy of the model before is as accurate.
    first["accuracy_before"] = None
    (second,) = copied[1]["reward_models"]
    second["accuracy_after"] = second["accuracy_before"]
    assert row(page(EXPERIMENT, copied), "default")[1] == "1 of 1"

    copied = json.loads(json.dumps(RECORDS))
    for one in copied:
        one["reward_models"][0]["accuracy_after"] = one["reward_models"][0]["accuracy_before"]
    table = page(EXPERIMENT, copied).partition("retrainings after which")[2]
    assert "| default |" not in table.partition("\n\n")[0]


def test_the_text_of_the_runs_nearest_to_and_farthest_from_sft_is_shown_side_by_side():
    said = {"other": ("near", 9.0), "default": ("far,\n  far", None)}
    found = [record("default", 0, 8.0, 6.5), record("other", 0, 9.0, 0.25)]
    found += [record("default", 1, 8.0, 0.0), record("other", 1, 8.0, 99.0)]  # Of another seed.
    for one in found[:2]:
        text, gold = said[one["variant"]]
        one["samples"] = [
            {"prompt": "How\nare you?", "response": text, "gold": gold},
            {"prompt": "And now?", "response": text, "gold": gold},
        ]
    text = page(EXPERIMENT, found)
    shown = text.partition("at each end")[2]
    assert "seed 0" in shown
    prompt = "> **How are you?**\n>\n> other, KL 0.25: near (gold 9.0)\n>\n"
    assert prompt + "> default, KL 6.50: far, far\n" in shown
    assert shown.count("far, far") == 2
    assert "at each end" not in page(EXPERIMENT, RECORDS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "docs/results/data/mine"
    folder.mkdir(parents=True)
    for entry in RECORDS:
        (folder / f"{entry['variant']}-seed{entry['seed']}.json").write_text(json.dumps(entry))
    return tmp_path


def test_page_and_plot_are_the_same_bytes_again(root: Path):
    path = write_page(root, EXPERIMENT)
    before = path.read_bytes(), path.with_suffix(".svg").read_bytes()
    write_page(root, EXPERIMENT)
    assert (path.read_bytes(), path.with_suffix(".svg").read_bytes()) == before
    assert path.read_text() == page(EXPERIMENT, RECORDS)


def test_readmes_block_is_replaced_and_nothing_else(root: Path):
    table = readme_table(root, EXPERIMENT)
    assert "| gold | 8.50 [7.26, 9.74] | 8.00 | 9.00 | [6.02, 10.00] |" in table
    readme = root / "README.md"
    readme.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    assert put_into_readme(root, table)
    assert readme.read_text() == f"before\n{table}\nafter\n"
    for text in ("no marks\n", f"before\n{START}\nold\nafter\n", f"{END}\nafter\n"):
        readme.write_text(text)
        assert not put_into_readme(root, table)
        assert readme.read_text() == text

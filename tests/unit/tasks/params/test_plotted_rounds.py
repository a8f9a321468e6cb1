"""Further rounds among the plots of dvc.yaml."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.own_data.files import rewrite_definition
from tasks.params.plotted_rounds import with_rounds

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = (ROOT / "dvc.yaml").read_text(encoding="utf-8")


def figures(text: str) -> dict[str, dict[str, str]]:
    """Figure -> file -> column."""
    plots: list[dict[str, Any]] = YAML(typ="safe").load(text)["plots"]
    return {name: figure["y"] for plot in plots for name, figure in plot.items()}


def test_further_rounds_are_in_every_figure_that_shows_rounds_and_all_else_stays():
    text = with_rounds(SHIPPED, ["r1", "r2", "r3", "r4", "last"])
    before, after = figures(SHIPPED), figures(text)
    of_rounds = {name for name, files in before.items() if any("/r1/" in file for file in files)}
    assert len(of_rounds) == 7
    for name, files in before.items():
        wanted = dict(files)
        for file, column in files.items():
            if "/r3/" in file:
                wanted |= {file.replace("r3", key): column for key in ("r4", "last")}
        assert after[name] == wanted, name
        assert list(after[name]) == list(wanted), "in the order of the rounds"
    kept = [line for line in text.splitlines() if line in SHIPPED.splitlines()]
    assert kept == SHIPPED.splitlines()


@pytest.mark.parametrize("rounds", [["r1", "r2", "r3"], ["r1"]])
def test_the_shipped_rounds_keep_their_bytes_also_where_there_are_fewer(rounds: list[str]):
    assert with_rounds(SHIPPED, rounds) == SHIPPED


def test_a_round_that_goes_takes_its_curves_with_it():
    more = with_rounds(SHIPPED, ["r1", "r2", "r3", "r4", "r5"])
    fewer = ["r1", "r2", "r3", "r4"]
    assert with_rounds(more, fewer) == with_rounds(SHIPPED, fewer) != SHIPPED
    assert with_rounds(more, fewer[:3]) == SHIPPED


def test_the_file_is_written_where_something_changes_and_only_there(tmp_path: Path):
    def plot(rounds: list[str]) -> bool:
        return rewrite_definition(tmp_path, lambda text: with_rounds(text, rounds))

    assert not plot(["r1", "r4"])
    (tmp_path / "dvc.yaml").write_text(SHIPPED, encoding="utf-8")
    assert plot(["r1", "r4"])
    assert (tmp_path / "dvc.yaml").read_text(encoding="utf-8") == with_rounds(SHIPPED, ["r4"])
    assert not plot(["r1", "r4"])
    assert [path.name for path in tmp_path.iterdir()] == ["dvc.yaml"]


def test_a_column_may_have_a_comment_and_a_file_of_no_round_is_left_alone():
    text = (
        "plots:\n"
        "  - mine:\n"
        "      y:\n"
        "        results/ppo/r1/history.csv: a/b  # mine\n"
        "  - sft:\n"
        "      y:\n"
        "        results/sft/history.csv: loss\n"
    )
    mine = "        results/ppo/r1/history.csv: a/b  # mine\n"
    added = "        results/ppo/r2/history.csv: a/b  # a round of params.yaml\n"
    assert with_rounds(text, ["r1", "r2"]) == text.replace(mine, mine + added)

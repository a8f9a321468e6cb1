"""The experiments that are described, and what is wrong with a description."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from experiments.__main__ import main
from experiments.descriptions import DescriptionError, available, load_experiment, read_seeds
from tasks.params.loading import load_params, read_yaml
from tasks.params.overlays import lay_over

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", available(ROOT))
def test_every_variant_gives_valid_params_that_differ_from_the_others(name: str, tmp_path: Path):
    experiment = load_experiment(ROOT, name)
    found = []
    for variant in experiment.variants:
        path = tmp_path / "params.yaml"
        with path.open("w") as file:
            values = lay_over(read_yaml(ROOT / "params.yaml"), experiment.overlay(variant, 7))
            YAML(typ="safe").dump(values, file)
        params = load_params(path)
        assert params.run.seed == 7
        assert params not in found
        found.append(params)


def test_the_confirmation_seeds_are_those_of_the_protocol():
    """docs/lab-notebook.md, 2026-11-23."""
    assert load_experiment(ROOT, "loop_works").seeds == list(range(10, 18))


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("10-12", [10, 11, 12]), ("0,2,5-6", [0, 2, 5, 6]), ("3", [3]), ("4,3-5", [4, 3, 5])],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1..3"])
def test_anything_else_is_refused(text: str):
    with pytest.raises(DescriptionError, match="expected such as 10-17"):
        read_seeds(text)


def test_a_range_that_ends_below_its_start_is_refused_and_not_nothing_at_all():
    with pytest.raises(DescriptionError, match="17-10 is empty; did you mean 10-17"):
        read_seeds("0,17-10")


def test_seeds_that_are_left_blank_are_not_all_of_the_experiment(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["loop_works", "--seeds", "", "--page"]) == 2
    assert "--seeds: expected such as 10-17" in capsys.readouterr().err


GOOD = "question: q\nbudget: b\nseeds: [0]\nvariants: {default: }\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("seeds: [0]\n", ""), "seeds: Field required"),
        (GOOD.replace("[0]", "[]"), "seeds: List should have at least 1 item"),
        (GOOD + "wariants: {}\n", "unknown key 'wariants'"),
        (GOOD.replace("{default: }", "[a]"), "variants: Input should be a valid dictionary"),
    ],
)
def test_a_description_names_file_and_key(tmp_path: Path, text: str, message: str):
    folder = tmp_path / "experiments/params"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(DescriptionError, match=message) as error:
        load_experiment(tmp_path, "mine")
    assert "mine.yaml" in str(error.value)


def test_an_experiment_that_is_not_there_names_those_that_are():
    with pytest.raises(DescriptionError, match=r"no experiment 'lop'; there are: .*loop_works"):
        load_experiment(ROOT, "lop")

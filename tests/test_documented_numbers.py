"""Results in README and tutorial stand in a file that a command wrote.

`docs/controls.md` is written by benchmarks/controls.py, `docs/default-run.json` by
benchmarks/front_page.py, `docs/results/NAME.md` by `python -m experiments NAME`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from experiments.descriptions import load_experiment
from experiments.pages import readme_table
from rlhf.params.base import BaseParams
from rlhf.params.evaluate import EvaluateParams
from tests.documents import DOCUMENTS, ROOT, read

RUNS = {"seed 0": "default"}
VARIANTS = {"defaults": "default", "no KL penalty": "no KL penalty"}
CONTROLS = read("docs/controls.md")
SEEDS = read("docs/results/loop_works.md")
LABELS = read("docs/results/fresh_labels.md")
STARTS = read("docs/results/round_start.md")
DEFAULT_RUN = ROOT / "docs" / "default-run.json"

RESULT = re.compile(r"(?<![\w.])\d+\.\d{2,}(?![\w.]*\d)")
COST = re.compile(r"(\d[\d.]*)[ \N{NO-BREAK SPACE}](minutes?|GB|MB)\b")
APPROXIMATE = re.compile(r"about (\d+(?:\.\d+)?)(?![\d.]| minutes| GB)")
PLACEHOLDER = re.compile(r"@[A-Z_]+@")
NO_RESULTS = re.compile(r"Python 3\.11|Apache-2\.0")


def numbers(text: str) -> set[str]:
    return set(RESULT.findall(NO_RESULTS.sub("", text)))


def written() -> set[str]:
    """All numbers that commands wrote for the documents."""
    found = numbers(CONTROLS) | numbers(SEEDS) | numbers(LABELS) | numbers(STARTS)
    if DEFAULT_RUN.exists():
        found |= numbers(DEFAULT_RUN.read_text(encoding="utf-8"))
    return found


def rows_of(run: str) -> set[str]:
    """The numbers of one run in docs/controls.md."""
    return numbers("".join(row for row in CONTROLS.splitlines() if row.startswith(f"| {run} |")))


@dataclass(frozen=True)
class Row:
    """A row of a table whose columns are runs."""

    name: str
    cells: dict[str, str]


def rows(markdown: str) -> Iterator[Row]:
    """All such rows, in order; other tables and other columns are left out."""
    header: list[str] = []
    for line in markdown.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = row
        else:
            named = dict(zip(header[1:], row[1:], strict=True))
            found = {column: cell for column, cell in named.items() if column in RUNS | VARIANTS}
            if found:
                yield Row(row[0], found)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_placeholder_is_left(document: str):
    assert PLACEHOLDER.findall(read(document)) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_result_stands_in_a_file_of_results(document: str):
    assert numbers(read(document)) - written() == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_number_in_a_column_is_of_that_run(document: str):
    """Those of a control do not stand in the default's column, and so on."""
    wrong = []
    for row in rows(read(document)):
        for column, cell in row.cells.items():
            known = rows_of((RUNS | VARIANTS)[column])
            wrong += [(row.name, column, number) for number in sorted(numbers(cell) - known)]
    assert wrong == []


def test_minutes_and_gigabytes_are_those_of_the_default_run():
    run = json.loads(DEFAULT_RUN.read_text(encoding="utf-8"))
    known = {"minutes": run["minutes"], "GB": run["peak_gigabytes"]}

    found = COST.findall(read("README.md"))

    assert {unit for _, unit in found} == {"minutes", "GB"}
    for number, unit in found:
        digits = len(number.partition(".")[2])
        assert f"{known[unit]:.{digits}f}" == number, unit


def test_the_tutorial_leaves_minutes_and_gigabytes_to_readme():
    assert COST.findall(read("docs/tutorial.md")) == []


def test_approximate_scores_are_means_of_the_seeds_rounded():
    """In the words for those who do not see the chart."""
    means = set()
    for figure in ("gold of SFT", "gold"):
        (mean,) = re.findall(rf"^\| {figure} \| default \| \d+ \| ([\d.]+)", SEEDS, re.MULTILINE)
        means |= {f"{float(mean):.0f}", f"{float(mean):.1f}"}

    assert set(APPROXIMATE.findall(read("README.md"))) <= means


def test_the_table_of_seeds_is_that_of_the_experiment():
    experiment = load_experiment(ROOT, "loop_works")
    assert readme_table(ROOT, experiment) in read("README.md")


def gold_kl_proxy(run: str, policy: str) -> tuple[str, str, str]:
    """Gold score without interval, KL and proxy score of a policy in docs/controls.md."""
    (row,) = (line for line in CONTROLS.splitlines() if line.startswith(f"| {run} | {policy} |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    return cells[2].partition(" ")[0], cells[4], cells[5]


def test_the_sentence_about_the_controls_has_the_numbers_of_their_runs():
    found = re.search(
        r"Without fresh labels, .* seed 0 ends at (\S+) and that model's score rises from (\S+) to "
        r"(\S+); without the KL penalty it ends at (\S+) and (\S+) nats; without either, gold "
        r"falls from (\S+) after round 1 to (\S+) while the score rises from (\S+) to (\S+) \(",
        read("README.md"),
    )
    assert found

    frozen, no_kl, neither = (
        "first reward model frozen",
        "no KL penalty",
        "neither fresh labels nor KL penalty",
    )
    gold, _, last = gold_kl_proxy(frozen, "r3")
    first = gold_kl_proxy(frozen, "r1")[2]
    (before, _, score), (after, _, scored) = (gold_kl_proxy(neither, key) for key in ("r1", "r3"))
    expected = (gold, first, last, *gold_kl_proxy(no_kl, "r3")[:2], before, after, score, scored)
    assert found.groups() == expected
    assert float(after) < float(before)
    assert float(score) < float(scored)


def test_each_line_of_the_tutorials_result_has_the_numbers_of_its_policy():
    lines = re.findall(r"^(sft|r\d)  +(\d.*)$", read("docs/tutorial.md"), re.MULTILINE)
    assert [policy for policy, _ in lines] == ["sft", "r1", "r2", "r3"]

    for policy, text in lines:
        (row,) = (x for x in CONTROLS.splitlines() if x.startswith(f"| default | {policy} |"))
        assert numbers(text) <= numbers(row), policy


def test_prompts_and_parameters_are_those_of_the_default_params():
    readme = " ".join(read("README.md").split())
    prompts = EvaluateParams().prompts
    assert f"measured on {prompts} held-out prompts" in readme
    assert f"One held-out prompt of {prompts}," in readme

    model = BaseParams().embedded
    (tokens,) = re.findall(r"complete at ([\d,]+)\ntokens", read("data/README.md"))
    width, inner = model.hidden_size, model.mlp_size
    layer = 4 * width * width + 3 * width * inner + 2 * width
    parameters = int(tokens.replace(",", "")) * width + model.layers * layer + width
    assert f"({parameters / 1e6:.1f} M parameters)" in readme


def test_the_example_is_that_of_the_default_run():
    example = json.loads(DEFAULT_RUN.read_text(encoding="utf-8"))["example"]
    words = " ".join(re.sub(r"[>*|`]|<br>", " ", read("README.md")).split())

    for key in ("prompt", "sft", "response"):
        assert " ".join(str(example[key]).split()) in words
    last = example["round"].removeprefix("r")
    assert f"After SFT (gold {example['gold_sft']:.1f}): {example['sft']}" in words
    assert f"After round {last} (gold {example['gold']:.1f}): {example['response']}" in words


def test_numbers_are_found_in_prose_and_tables_but_not_in_versions():
    text = "**8.70** [8.51, 8.89], 0.628 → 0.698; Python 3.11, torch 2.13.0, ends at 3.59."

    assert numbers(text) == {"8.70", "8.51", "8.89", "0.628", "0.698", "3.59"}

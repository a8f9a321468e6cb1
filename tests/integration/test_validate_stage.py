"""The validate stage in a process of its own: from a round's files to data, or to a refusal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from preferences.allowing import load_allowed
from preferences.records import pair_id
from tasks.running.staging import write_manifest
from tests.integration.own_place import rows, write_rows
from tests.tiny import tokenizer

ROOT = Path(__file__).resolve().parents[2]


class Round:
    """A folder with all that the stage reads: 40 good pairs, one with a blank answer, one tie."""

    def __init__(self, root: Path):
        self.root = root
        self.values = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
        self.values["validate"] = {"heldout_fraction": 0.25}
        pairs = [(f"Where is {n}?", f"Here is {n}.", f"No {n}.") for n in range(40)]
        pairs += [("Empty?", "", "No."), ("Equal?", "Yes.", "Right.")]
        comparisons = [
            {
                "pair_id": pair_id(*pair), "round": "r1", "prompt_id": f"p{n}", "prompt": pair[0],
                "response_a": pair[1], "response_b": pair[2], "policy_a": "x", "policy_b": "y",
            }
            for n, pair in enumerate(pairs)
        ]  # fmt: skip
        judgments = [
            {
                "judgment_id": f"j{n}", "pair_id": row["pair_id"], "round": "r1",
                "annotator_id": "kim", "kind": "human", "annotator_version": "v",
                "choice": "tie" if row["prompt"] == "Equal?" else "a", "strength": None,
                "shown_order": "AB", "revision": 1,
            }
            for n, row in enumerate(comparisons)
        ]  # fmt: skip
        self.blank = comparisons[40]["pair_id"]
        write_rows(root / "data/rounds/r1/comparisons.jsonl", comparisons)
        write_rows(root / "data/rounds/r1/judgments.jsonl", judgments)
        write_rows(root / "data/allowed.jsonl", [])
        for split in ("heldout", "test"):
            prompts = [{"prompt_id": f"e{split}", "prompt": f"Quite another {split} matter?"}]
            write_rows(root / f"data/prepared/prompts/{split}.jsonl", prompts)
        for split in ("train", "heldout"):
            write_rows(root / f"data/prepared/preferences/{split}.jsonl", [])
        tokenizer().save_pretrained(root / "models/sft")
        write_manifest(root / "models/sft", params={}, inputs={})

    def run(self) -> tuple[int, str]:
        """Exit code and stderr."""
        YAML().dump(self.values, self.root / "params.yaml")
        done = subprocess.run(
            [sys.executable, "-m", "tasks.validate", "--round", "r1"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    @property
    def results(self) -> Path:
        return self.root / "results/validate/r1"

    @property
    def preferences(self) -> Path:
        return self.root / "data/rounds/r1/preferences"


@pytest.fixture
def round_(tmp_path: Path) -> Round:
    return Round(tmp_path)


def test_good_rows_pass_and_every_other_row_is_accounted_for(round_: Round):
    code, err = round_.run()
    assert (code, err) == (0, "")
    counts = json.loads((round_.results / "verdict.json").read_text())["rows"]
    assert (counts["quarantined"], counts["ties"]) == (1, 1)
    passed = [rows(round_.preferences / f"{split}.jsonl") for split in ("train", "heldout")]
    assert sum(map(len, passed)) == 40
    report = (round_.results / "report.md").read_text()
    # "Here is n." is the longer one, and "Here" its first word.
    assert "- longer_wins: 1.000 (95 %" in report
    assert "- bag_of_words: 1.000 (95 %" in report
    (aside,) = rows(round_.results / "quarantine.jsonl")
    assert (aside["rules"], aside["where"]) == (["blank_responses"], f"comparison {round_.blank}")


@pytest.mark.long
@pytest.mark.parametrize("weights", [{}, {"llm": 0.3}])
def test_kinds_that_count_alike_without_anybodys_choice_are_said(
    round_: Round, weights: dict[str, float]
):
    path = round_.root / "data/rounds/r1/judgments.jsonl"
    mixed = [row | {"kind": "llm"} if n % 2 else row for n, row in enumerate(rows(path))]
    write_rows(path, mixed)
    round_.values["validate"]["weights"] = weights

    code, err = round_.run()

    assert code == 0
    words = "Votes by kind of annotator: human 21, llm 21."
    alike = " They count alike; `validate.weights` gives a kind another weight."
    assert (words + alike in err) == (not weights)
    assert (words + alike in (round_.results / "report.md").read_text()) == (not weights)
    assert words in (round_.results / "report.md").read_text()
    metrics = json.loads((round_.results / "metrics.json").read_text())
    assert (metrics["votes/human"], metrics["votes/llm"]) == (21, 21)


def test_the_repositorys_own_allow_list_allows_nothing_and_is_no_empty_file():
    """DVC warns of an empty file three times a round."""
    path = ROOT / "data/allowed.jsonl"
    assert load_allowed(path) == frozenset()
    assert path.stat().st_size > 0


@pytest.mark.long
def test_the_allow_list_of_the_repository_puts_a_row_back(round_: Round):
    entry = {"pair_id": round_.blank, "rule": "blank_responses", "why": "silence is an answer"}
    write_rows(round_.root / "data/allowed.jsonl", [entry])
    code, err = round_.run()
    assert code == 0, err
    assert rows(round_.results / "quarantine.jsonl") == []


def without_labels(round_: Round, *, wrong: int = 0) -> None:
    """Nobody judges; 48 initial preferences, a quarter of them held out, `wrong` of them blank."""
    round_.values["label"] = {"annotators": "none"}
    round_.values["prepare"]["sources"] = [{"path": "mine/pairs.jsonl"}]
    write_rows(round_.root / "data/rounds/r1/judgments.jsonl", [])
    texts = [(f"Why {n}?", f"Since {n} is so." if n >= wrong else "", "No.") for n in range(48)]
    initial = [
        {
            "pair_id": pair_id(*each), "prompt_id": f"i{n}", "prompt": each[0], "chosen": each[1],
            "rejected": each[2], "margin": 0.0, "weight": 1.0, "source": "mine", "round": "",
            "split": "heldout" if n % 4 == 0 else "train",
        }
        for n, each in enumerate(texts)
    ]  # fmt: skip
    for split in ("train", "heldout"):
        chosen = [row for row in initial if row["split"] == split]
        write_rows(round_.root / f"data/prepared/preferences/{split}.jsonl", chosen)


@pytest.mark.long
def test_where_nobody_labels_the_initial_preferences_pass_by_themselves(round_: Round):
    without_labels(round_)
    code, err = round_.run()
    assert (code, err) == (0, "")
    counts = json.loads((round_.results / "verdict.json").read_text())["rows"]
    # 40 good pairs, one with a blank answer and one that would be a tie: sampled, never judged.
    assert (counts["fresh"], counts["unjudged"], counts["earlier"]) == (0, 42, 48)
    sides = {split: rows(round_.preferences / f"{split}.jsonl") for split in ("train", "heldout")}
    assert {split: len(side) for split, side in sides.items()} == {"train": 36, "heldout": 12}


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            24,
            "max_quarantined_fraction: 24 of 48 initial preferences quarantined, more than 25% "
            "(blank_responses 24)",
        ),
        (48, "min_rows: 0 initial preferences passed, 1 required"),
    ],
)
def test_initial_preferences_without_labels_still_have_to_be_good_ones(
    round_: Round, wrong: int, reason: str
):
    without_labels(round_, wrong=wrong)
    code, err = round_.run()
    assert code == 4
    assert reason in err


@pytest.mark.long
def test_a_token_limit_that_cuts_the_responses_off_is_named(round_: Round):
    without_labels(round_)
    round_.values["reward"]["max_tokens"] = 2
    code, err = round_.run()
    assert code == 4
    # No prompt is so short, so the model would see the same of both responses.
    assert "48 of 48 initial preferences quarantined, more than 25% (identical_tokens 48); " in err
    assert (
        "; identical_tokens compares the first 2 tokens of a pair (reward.max_tokens). Rep" in err
    )


@pytest.mark.long
def test_what_blocks_is_said_and_nothing_is_published(round_: Round):
    round_.values["validate"] |= {
        "human_labels": {"r1": 50}, "severities": {"blank_responses": "error"}
    }  # fmt: skip
    code, err = round_.run()
    assert code == 4
    blank = "blank_responses: 1 row where a response has no visible character"
    people = "human_labels: people judged 42 fresh pairs, the round requires 50"
    report = ".work/validate@r1/blocked/report.md"
    assert f"validate@r1: {blank}; {people}. Report: {report}\n" in err
    outcome = json.loads((round_.root / ".work/validate@r1/outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("blocked", 4)
    assert blank in outcome["message"]
    assert (round_.root / report).read_text().startswith("# Preference data: BLOCKED")
    assert not round_.preferences.exists()
    assert not round_.results.exists()


@pytest.mark.long
def test_an_allow_list_for_a_rule_that_does_not_exist_is_refused(round_: Round):
    entry = {"pair_id": round_.blank, "rule": "blank", "why": "?"}
    write_rows(round_.root / "data/allowed.jsonl", [entry])
    code, err = round_.run()
    assert code == 2
    assert 'data/allowed.jsonl:1: field "rule": expected one of blank_responses, ' in err
    assert "Traceback" not in err

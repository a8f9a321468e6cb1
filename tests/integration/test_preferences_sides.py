"""The two sides of the preferences, and prompts that are on both or among those held out."""

import json

import pytest

from preferences.__main__ import main
from tests.integration.preference_files import ROWS, write


def test_heldout_prompts_may_have_the_layout_of_the_data(tmp_path, capsys):
    rows = [{"q": row["prompt"], "yes": row["chosen"], "no": row["rejected"]} for row in ROWS]
    path = write(tmp_path / "x.jsonl", rows)
    layout = "prompt=q,chosen=yes,rejected=no"
    assert main(["check", str(path), "--map", layout, "--against", str(path)]) == 1
    assert "blocked: evaluation_leaks" in capsys.readouterr().out


def test_a_leak_against_heldout_prompts_blocks_with_the_reason(tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    assert main(["check", str(path), "--against", str(path)]) == 1
    assert "blocked: evaluation_leaks: " in capsys.readouterr().out


@pytest.mark.long
def test_heldout_prompts_of_rows_with_and_without_a_prompt_are_read(tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    implicit = {"chosen": "Q: hi A", "rejected": "Q: hi B"}
    against = write(tmp_path / "held.jsonl", [*ROWS, implicit])
    assert main(["check", str(path), "--against", str(against)]) == 1
    assert "blocked: evaluation_leaks: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda text: {"prompt": text}, marks=pytest.mark.long),
        pytest.param(
            lambda text: {"prompt": [{"role": "user", "content": text}]}, marks=pytest.mark.long
        ),
        pytest.param(
            lambda text: {"prompt": text, "completion": "alone", "label": True},
            marks=pytest.mark.long,
        ),
        lambda text: {
            "prompt": [{"role": "user", "content": text}],
            "chosen": "a",
            "rejected": "b",
        },
        lambda text: {
            "chosen": f"\n\nHuman: {text}\n\nAssistant: one",
            "rejected": f"\n\nHuman: {text}\n\nAssistant: two",
        },
    ],
    ids=["prompts", "messages", "without opponent", "pairs of messages", "transcripts"],
)
def test_a_leak_is_found_whatever_form_the_heldout_prompts_have(form, tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    against = write(tmp_path / "held.jsonl", [form(row["prompt"]) for row in ROWS])
    assert main(["check", str(path), "--against", str(against)]) == 1
    assert "blocked: evaluation_leaks: " in capsys.readouterr().out


def test_rows_of_our_own_format_keep_their_side_and_a_prompt_on_both_is_found(tmp_path, capsys):
    twice = {**ROWS[0], "chosen": "another one", "rejected": "yet another"}
    plain = write(tmp_path / "x.jsonl", [ROWS[0], twice, *ROWS[1:]])
    own, out = tmp_path / "own.jsonl", tmp_path / "out"
    assert main(["convert", str(plain), str(own), "--to", "preferences"]) == 0
    rows = [json.loads(line) for line in own.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["split"] = "train" if number % 2 else "heldout"
    write(own, rows)
    capsys.readouterr()
    assert main(["check", str(own), "--report", str(out)]) == 1
    assert "blocked: split_leaks: 2 rows where the prompt is on both" in capsys.readouterr().out

    write(own, rows[1:])
    assert main(["check", str(own), "--report", str(out)]) == 0
    for split, first in (("train", 1), ("heldout", 2)):
        kept = [json.loads(line)["pair_id"] for line in (out / f"{split}.jsonl").open()]
        assert kept == [row["pair_id"] for row in rows[first::2]]

"""What the commands refuse: in one line that names the option, or the file and its line."""

from pathlib import Path
from typing import Any

import pytest

Command = Any


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--port", "99999"), "--port is 99999, expected 0 to 65535"),
        (("serve", "--port", "-1"), "--port is -1, expected 0 to 65535"),
        (("serve", "--lease-minutes", "inf"), "--lease-minutes is inf, expected more than 0"),
        (("serve", "--lease-minutes", "nan"), "--lease-minutes is nan, expected more than 0"),
        (("serve", "--lease-minutes", "-3"), "--lease-minutes is -3.0, expected more than 0"),
        (("serve", "--gold-rate", "nan"), "--gold-rate is nan, expected 0 to 1"),
        (("serve", "--repeat-rate", "7"), "--repeat-rate is 7.0, expected 0 to 1"),
    ],
)
def test_numbers_that_no_page_can_be_served_with_are_refused(
    run: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": [{"role": "user"}], "response_b": "b", "gold": "a"}', "response_a is None"),
        ('{"prompt": ["hello"], "response_a": "a", "response_b": "b", "gold": "a"}', "prompt is"),
        (
            '{"prompt": "\\ud800", "response_a": "a", "response_b": "b", "gold": "a"}',
            "half a surrogate pair",
        ),
    ],
)
def test_a_gold_item_that_is_none_is_named_with_its_line(
    run: Command, tmp_path: Path, row: str, message: str
) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    code, _, err = run("publish", "--gold", path)
    assert code == 2
    assert f"{path}:1: " in err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "\\ud800", "chosen": "a", "rejected": "b"}',
        '{"prompt": "p", "chosen": "a", "rejected": "b", "annotator_id": "\\udfff"}',
    ],
)
def test_a_row_of_trl_with_half_a_character_is_named_with_its_line(
    run: Command, tmp_path: Path, row: str
) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    code, _, err = run("import", path, "--round", "r1", "--format", "trl")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{path}:1: " in err
    assert "half a surrogate pair" in err


def test_guidelines_that_are_not_utf_8_are_named(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "guidelines.md"
    path.write_bytes("Gru\xdf".encode("latin-1"))
    code, _, err = run("serve", "--port", "0", "--guidelines", path)
    assert (code, err) == (2, f"{path}: not UTF-8 at byte 3\n")

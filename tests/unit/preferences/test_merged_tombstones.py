"""Files of tombstones that git has merged."""

from pathlib import Path

from preferences.withdrawals import load_withdrawals, tombstone


def test_what_clones_withdrew_under_different_salts_counts_all_the_same(tmp_path: Path) -> None:
    """Git merges the files of two clones, each of which had its first withdrawal."""
    path = tmp_path / "texts.jsonl"
    lines = [tombstone("text", said, salt * 16) for said, salt in (("one", "01"), ("two", "ff"))]
    path.write_text("".join(one.line() for one in lines))

    rows = [{"text": "one"}, {"text": "two"}, {"text": "three"}]

    assert load_withdrawals(path).kept(rows) == [{"text": "three"}]

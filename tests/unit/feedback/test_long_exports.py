"""An export of a large round takes a while, in which people judge."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from feedback.store import exporting
from tests.unit.feedback.conftest import Command


def test_answers_are_saved_while_an_export_is_made(
    run: Command, desk: Any, make_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.publish(make_pairs(2))

    def slowly(*_: object) -> str:
        # As the page does from its own process; it waits for 30 s, an export may take longer.
        with closing(sqlite3.connect(tmp_path / "feedback.db", timeout=0.1)) as page:
            page.execute("BEGIN IMMEDIATE")
        return "all of it"

    monkeypatch.setattr(exporting, "_formatted", slowly)
    assert run("export", "--round", "r1", "--out", tmp_path / "j.jsonl")[0] == 0
    assert (tmp_path / "j.jsonl").read_text(encoding="utf-8") == "all of it"

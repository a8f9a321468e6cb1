"""dvc.lock after outputs of another machine could not be fetched."""

from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows import placing
from tasks.workspace.orders import Answer, Order


@pytest.mark.parametrize("before", ["stages: {}\n", None])
def test_the_lock_is_as_it_was_where_the_outputs_could_not_be_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """It would name outputs that are not here."""
    lock = tmp_path / "dvc.lock"
    if before is not None:
        lock.write_text(before)
    monkeypatch.setattr(placing, "adopt_notes", lambda *_: None)
    monkeypatch.setattr(placing, "adopt_entry", lambda *_: lock.write_text("stages: {sft: {}}\n"))
    monkeypatch.setattr(placing, "forget_order", lambda *_: pytest.fail("it is not taken in"))
    monkeypatch.setattr(placing.remotes, "dvc", lambda *_, **__: 1)

    with disable_run_logger():
        order = Order("sft", "a" * 40)
        ending = placing._take_in(tmp_path, order, Answer("ran", ""), "origin", "one")

    assert (ending.how, ending.message) == ("failed", "`dvc pull sft` failed; the log says why")
    assert (lock.read_text() if lock.exists() else None) == before

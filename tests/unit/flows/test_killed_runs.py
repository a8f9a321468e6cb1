"""What a kill must not leave of a run that waited, or of one that died early."""

from pathlib import Path

import pytest

from flows import runs
from tasks.workspace.files import read_json
from tests.unit.flows.test_runs import Ordered, note
from tests.unit.flows.test_runs import ordered as ordered


def test_a_run_that_waited_and_is_killed_as_it_goes_on_is_ordered_when_people_are_done(
    tmp_path: Path, ordered: Ordered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal, or by a kill that writes nothing any more."""
    workspace = note(tmp_path, "waits", waits=True, until="ppo@r2")
    monkeypatch.setattr(runs, "_ordered_as", lambda: "one")

    def killed(path: Path) -> None:
        note = read_json(workspace / runs.NOTE)
        assert note is not None
        assert note["waits"]
        raise SystemExit(143)

    monkeypatch.setattr(runs, "load_params", killed)
    with pytest.raises(SystemExit):
        runs._work(workspace, "ppo@r2")

    assert runs.order_waiting(tmp_path) == ["waits"]
    assert [order[:2] for order in ordered] == [("waits", "ppo@r2")]


def test_an_outcome_of_an_earlier_run_says_nothing_about_one_that_died_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    from flows import stages

    (tmp_path / ".work/sft").mkdir(parents=True)
    (tmp_path / ".work/sft/outcome.json").write_text(
        '{"status": "bad_input", "message": "of yesterday"}'
    )
    words = "ERROR: failed to reproduce 'sft': failed to run: train, exited with -9"
    monkeypatch.setattr(stages, "DVC", ["sh", "-c", f'echo "{words}"; exit 255'])

    ending = stages.run_stage("sft", tmp_path, execution="one", logger=logging.getLogger("test"))

    assert ending.how == "killed"
    assert "of yesterday" not in ending.message

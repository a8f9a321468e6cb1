"""`make sync` counts no run as delivered where MLflow's database is damaged."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tasks.sync import main
from tasks.tracking.sent import load_sent, save_sent
from tasks.tracking.shipping import has_news, tracking_uri
from tasks.tracking.spool import RunStart, open_spool, read_finish


def test_runs_that_had_arrived_there_are_not_called_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    store = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE experiments (creation_time INTEGER)")
        database.executemany("INSERT INTO experiments VALUES (?)", [(7,)] * 5000)
        database.commit()
    spool = open_spool(tmp_path, RunStart("ppo@r1", "e", params={}, inputs={}, tags={}))
    spool.finish("FINISHED", {}, [])
    sent = load_sent(spool.folder, tracking_uri(tmp_path))
    finish = read_finish(spool.folder)
    assert finish is not None
    sent.run, sent.described, sent.models_done = "0a", True, True
    sent.ended_ms = finish["ended_ms"]
    save_sent(spool.folder, sent)
    assert not has_news(spool.folder)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("1 run is in MLflow, ")

    # The second page, behind that with the table's description.
    content = store.read_bytes()
    store.write_bytes(content[:4096] + bytes(4096) + content[8192:])

    assert main([]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{store}: MLflow's database is damaged (")
    assert said.err.endswith("; nothing was sent, `make doctor` says what to do\n")
    assert said.err.count("\n") == 1

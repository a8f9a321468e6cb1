"""MLflow's SQLite store is for its owner only, whoever creates it and whatever the umask."""

import logging
import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

from tasks.tracking.registered import ensure_version
from tasks.tracking.store import connect, find_run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / ".work" / "mlflow" / "mlflow.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_store_and_an_old_one_with_open_modes_are_private(store: Path):
    before = os.umask(0o022)
    try:
        connect(f"sqlite:///{store}")
    finally:
        os.umask(before)
    assert (mode(store.parent), mode(store)) == (0o700, 0o600)

    older = store.parents[2] / "another checkout" / ".work" / "mlflow" / "mlflow.db"
    older.parent.mkdir(parents=True)
    shutil.copy(store, older)
    older.chmod(0o644)
    connect(f"sqlite:///{older}")
    assert mode(older) == 0o600


def test_the_mode_of_a_store_that_somebody_set_up_elsewhere_stays(tmp_path: Path):
    connect(f"sqlite:///{tmp_path}/ours/runs.db")
    elsewhere = tmp_path / "shared" / "runs.db"
    elsewhere.parent.mkdir()
    shutil.copy(tmp_path / "ours" / "runs.db", elsewhere)
    elsewhere.chmod(0o660)
    connect(f"sqlite:///{elsewhere}")
    assert mode(elsewhere) == 0o660


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"this is something else", "file is not a database"), (b"", "no such table: experiments")],
)
def test_a_damaged_store_is_named_as_mlflow_names_its_errors(
    store: Path, content: bytes, words: str
):
    store.parent.mkdir(parents=True)
    (store.parent / "artifacts").mkdir()
    store.write_bytes(content)
    with pytest.raises(MlflowException) as refused:
        connect(f"sqlite:///{store}")
    assert str(refused.value) == f"{store}: {words}"


@pytest.mark.parametrize("value", ["ada", "ada's", 'the "first"'])
def test_a_run_is_found_by_a_tag_with_marks_of_quotation(store: Path, value: str):
    opened = connect(f"sqlite:///{store}")
    made = opened.client.create_run(opened.experiment, tags={"rlhf.execution": value})
    found = find_run(opened, "rlhf.execution", value)
    assert found is not None
    assert found.info.run_id == made.info.run_id


def test_an_error_of_the_database_is_raised_and_not_written_as_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The driver says it in one line; MLflow's fifty lines hid what had ended the run."""
    connected = connect(f"sqlite:///{tmp_path}/mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("ALTER TABLE runs RENAME TO gone")  # Stands for a disk without room.

    with pytest.raises(MlflowException, match="no such table"):
        find_run(connected, "a", "b")

    assert "Traceback" not in capfd.readouterr().err


def test_a_database_that_is_tried_again_is_said_to_be(caplog: pytest.LogCaptureFixture):
    """MLflow waits for a server up to ten times, for a minute and a half in all."""
    log = logging.getLogger("mlflow.store.db.utils")
    log.addHandler(caplog.handler)
    log.warning("Operation will be retried")
    log.removeHandler(caplog.handler)
    assert "Operation will be retried" in caplog.text


class SlowStore(BaseHTTPRequestHandler):
    """Replies to a file after 1.5 s, as a server that has to send it to its own store."""

    received: ClassVar[list[int]] = []

    def do_PUT(self) -> None:
        self.received.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
        time.sleep(1.5)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.long
def test_the_reply_to_a_large_artifact_is_waited_for_longer_and_it_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setattr(SlowStore, "received", [])
    server = HTTPServer(("127.0.0.1", 0), SlowStore)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/api/2.0/mlflow-artifacts/artifacts"
    (tmp_path / "large").write_bytes(bytes(20_000_000))  # 4 s at 5 MB a second
    (tmp_path / "small").write_bytes(b"{}")
    try:
        HttpArtifactRepository(address).log_artifact(str(tmp_path / "large"))
        assert SlowStore.received == [20_000_000]
        with pytest.raises(MlflowException, match="timeout"):
            HttpArtifactRepository(address).log_artifact(str(tmp_path / "small"))
    finally:
        server.shutdown()
        server.server_close()


def test_a_model_is_registered_where_it_is_though_another_store_was_met_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where `make sync` sends what an earlier store still lacks."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow sets it at each connection.
    first, other = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "other"))
    store = connect(first)
    run = store.client.create_run(store.experiment)
    model = store.client.create_logged_model(
        store.experiment, name="policy", source_run_id=run.info.run_id
    )
    connect(other)
    version = ensure_version(connect(first), model, "models/rounds/r1/policy", "0" * 32)
    assert (version.name, version.run_id) == ("rlhf-policy", run.info.run_id)

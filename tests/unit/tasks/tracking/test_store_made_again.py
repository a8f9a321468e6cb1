"""A store of MLflow that was deleted and made again."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tasks.tracking.sent import load_sent, save_sent


def store(path: Path, made: int) -> str:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE experiments (creation_time INTEGER)")
        database.execute("INSERT INTO experiments VALUES (?)", [made])
        database.commit()
    return f"sqlite:///{path}"


def test_what_went_to_a_store_that_was_deleted_and_made_again_is_sent_anew(tmp_path: Path) -> None:
    uri = store(tmp_path / "mlflow.db", 1_000)
    sent = load_sent(tmp_path, uri)
    sent.run, sent.metrics, sent.models_done = "a1", 7, True
    save_sent(tmp_path, sent)
    assert load_sent(tmp_path, uri) == sent

    store(tmp_path / "mlflow.db", 2_000)

    again = load_sent(tmp_path, uri)
    assert (again.run, again.metrics, again.models_done, again.made) == ("", 0, False, 2_000)

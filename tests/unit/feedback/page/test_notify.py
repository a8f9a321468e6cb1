"""Whom the page tells that a round is complete, and where it says it can be found."""

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedback.page.notify import authorization, local_prefect
from feedback.people import how_to_open
from feedback.store.events import record


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    path = tmp_path / "server.lock"
    path.write_text("http://127.0.0.1:4200\nhttp://127.0.0.1:5000\n")
    return path


@pytest.fixture
def running(lock: Path) -> Iterator[None]:
    """A server that holds its lock, as `flows.servers.prefect_server` does."""
    with lock.open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("running")
def test_the_prefect_server_of_this_folder_is_found_while_it_runs() -> None:
    assert local_prefect() == "http://127.0.0.1:4200/api"


@pytest.mark.usefixtures("running")
def test_the_server_of_this_folder_is_notified_with_its_password_and_no_other_server_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    (tmp_path / "auth").write_text("me:pw\n")
    # From RFC 7617: base64 of user, colon, password.
    assert authorization("http://127.0.0.1:4200/api") == {"Authorization": "Basic bWU6cHc="}
    assert authorization("http://127.0.0.1:4201/api") == {}
    assert authorization("https://evil.example/api") == {}


@pytest.mark.usefixtures("lock")
def test_another_server_is_notified_with_the_password_that_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:pw")
    header = authorization("https://prefect.example/api")
    assert header == {"Authorization": "Basic bWU6cHc="}


@pytest.mark.usefixtures("lock")
def test_a_server_that_has_ended_is_not_notified() -> None:
    assert local_prefect() is None


def test_where_none_has_ever_run_nobody_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "nowhere"))
    assert local_prefect() is None


def test_who_waits_is_sent_to_where_the_page_was_last_opened(desk: Any) -> None:
    with desk.database.writing() as connection:
        assert "http://127.0.0.1:8765" in how_to_open(connection)
        record(connection, "open", page="http://labels.example:1")
        record(connection, "open", page="http://labels.example:2")
        assert "http://labels.example:2" in how_to_open(connection)


def test_who_waits_in_a_variant_opens_the_page_of_that_variant(
    desk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".work/variants/no_kl"
    folder.mkdir(parents=True)
    with desk.database.reading() as connection:
        monkeypatch.chdir(tmp_path)
        assert "(`make annotate` opens the page)" in how_to_open(connection)
        monkeypatch.chdir(folder)
        assert "(`make annotate VARIANT=no_kl` opens the page)" in how_to_open(connection)

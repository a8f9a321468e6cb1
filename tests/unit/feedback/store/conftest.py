"""The tests of the store run on SQLite, and on PostgreSQL too (`make test-team`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.feedback.conftest import Desk


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.team)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store can be made: a file that is not there yet, or an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "feedback.db")
    server = request.getfixturevalue("postgres")
    # Many times faster than a database of its own for each test.
    server.sql("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return str(server.url())


@pytest.fixture
def desk(store: str) -> Iterator[Desk]:
    opened = Desk(store)
    yield opened
    opened.database.close()

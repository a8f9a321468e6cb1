"""A PostgreSQL server of the tests' own on 127.0.0.1, from the machine's installation."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy

from flows.servers import any_free_port

SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
"""Of each version that is installed as a server; a client alone has no initdb."""
INSTALLED = SERVERS[0].parent if SERVERS else None
PASSWORD = "only-of-this-test"


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server; its superuser is `postgres`."""

    bin: Path
    port: int
    password: str = PASSWORD

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """As people write it, with the password."""
        return f"postgresql://{user}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def sql(self, *statements: str, database: str = "postgres") -> None:
        """Run statements, each in a transaction of its own or in none."""
        url = self.url(database).replace("postgresql:", "postgresql+psycopg:")
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The address of a new database, which is dropped afterwards."""
        self.sql(f'CREATE DATABASE "{name}"')
        try:
            yield self.url(name)
        finally:
            self.sql(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def running() -> Iterator[Postgres]:
    """Start it, and stop it at the end; the test is skipped where PostgreSQL is not installed.

    PostgreSQL does not run as root, so then its own user has to be there.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")
    if INSTALLED is None:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    data, log, port = folder / "data", folder / "log", any_free_port()

    def run(*command: object) -> None:
        # Not captured: the server would keep the pipe.
        subprocess.run(
            list(map(str, command)), user=user, check=True, cwd=folder, stdout=subprocess.DEVNULL
        )

    run(INSTALLED / "initdb", "-D", data, "-U", "postgres", "-A", "scram-sha-256", "-N",
        "--pwfile", secret, "--encoding", "UTF8", "--locale", "C")  # fmt: skip
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    pg_ctl = (INSTALLED / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "300")
    run(*pg_ctl, "-o", options, "start")
    try:
        yield Postgres(INSTALLED, port)
    finally:
        run(*pg_ctl, "-m", "immediate", "stop")
        shutil.rmtree(folder)

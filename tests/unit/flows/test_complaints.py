"""Errors in the servers' logs become one line each."""

from flows.complaints import Complaints

# As Prefect 3.8.8 writes it on SQLAlchemy 2.1.9, shortened.
SCHEDULER = """\
18:15:27.564 | WARNING | prefect.server - slow
18:15:28.100 | ERROR   | prefect.server.services.scheduler - Unexpected error in: InvalidRequest(7)
Traceback (most recent call last):
  File "scheduler.py", line 274, in schedule
    await session.execute(query)
sqlalchemy.exc.InvalidRequestError: Can't evaluate bulk DML statement

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "loop.py", line 12, in run
RuntimeError: Can't evaluate bulk DML statement 3
18:15:28.200 | INFO    | prefect.server - on
"""


def test_an_error_is_said_with_what_was_raised(tmp_path):
    log = tmp_path / "server.log"
    watch = Complaints(log)
    assert watch.new() == []
    log.write_text(SCHEDULER)
    assert watch.new() == [], "it may still be written"
    assert watch.new() == [
        "prefect.server.services.scheduler - Unexpected error in: InvalidRequest(7) | "
        "RuntimeError: Can't evaluate bulk DML statement 3"
    ]
    assert watch.new() == []


def test_it_is_said_where_nobody_could_be_told_how_a_run_ended(tmp_path):
    # As Prefect 3.8.8 writes them.
    found = Complaints(tmp_path / "x").of(
        "11:48:23.530 | WARNING | prefect.server.events.actions - Action failed: 'Failed to set "
        "state: Run is already in terminal state FAILED.'\n"
        "11:48:25.530 | WARNING | prefect.server.events.actions - Action failed: "
        "\"Webhook call failed: ConnectError('All connection attempts failed')\"\n"
    )
    assert found == [
        "prefect.server.events.actions - Action failed: "
        "\"Webhook call failed: ConnectError('All connection attempts failed')\""
    ]


def test_the_same_error_is_said_once_whatever_its_numbers(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        SCHEDULER + SCHEDULER.replace("(7)", "(8)").replace("statement 3", "statement 4")
    )
    watch = Complaints(log)
    watch.new()
    assert len(watch.new()) == 1


def test_a_bare_traceback_and_uvicorns_errors_count(tmp_path):
    found = Complaints(tmp_path / "x").of(
        "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'y'\n"
        "INFO:     started\nERROR:    [Errno 98] address already in use\n"
    )
    assert found == [
        "ModuleNotFoundError: No module named 'y'",
        "[Errno 98] address already in use",
    ]


def test_writers_of_sqlite_that_collide_are_not_reported(tmp_path):
    text = "18:15:27.5 | ERROR   | prefect.server - Encountered error\nTraceback (most recent\n"
    locked = f"{text}sqlite3.OperationalError: database is locked\n"
    assert Complaints(tmp_path / "x").of(locked) == []
    assert len(Complaints(tmp_path / "x").of(f"{text}sqlite3.OperationalError: disk full\n")) == 1

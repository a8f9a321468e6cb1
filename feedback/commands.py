"""Implements the commands of `python -m feedback`."""

import argparse
import errno
import os
import pwd
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select

from feedback.annotators import MissingJudgmentsError, refusal_lines
from feedback.formats.exchange import from_trl
from feedback.formats.label_studio import CONFIG, read_export
from feedback.judgments import json_rows, read_judgments, read_pairs
from feedback.page.lead import lead_view
from feedback.page.notify import local_prefect
from feedback.page.proxies import Proxies
from feedback.page.running import run, stopped_by_signals
from feedback.page.server import LOCAL_HOSTS, ServerParams, create_app
from feedback.people import how_to_open
from feedback.quality.annotators import QualityParams
from feedback.store import accounts, backup, exporting, rounds, schema
from feedback.store.assignments import ServeParams
from feedback.store.database import Database, shown, sqlite_file, usual_store
from feedback.store.events import record
from feedback.store.gold import publish_gold, read_gold
from feedback.store.importing import take
from preferences.records import Judgment

_LONGEST_LEASE = 7 * 24 * 60
"""Minutes for which a pair may wait for one person."""


def serve(given: argparse.Namespace) -> int:
    """Serves the page until it is interrupted."""
    _check_numbers(given)
    with (
        suppress(KeyboardInterrupt),
        stopped_by_signals(),
        socket.socket() as listener,
        _opened(given.store) as database,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener, given.host, given.port)
        address = _address(given, listener.getsockname()[1])
        params = _server_params(given, address)
        app = create_app(database, params, serve=_serve_params(given))
        link = _first_link(database, address, given.store)
        run(app, listener, params.proxies, ready=lambda: _say(f"The labelling page: {link}"))
    return 0


def _check_numbers(given: argparse.Namespace) -> None:
    # Written so that NaN is refused, too.
    for name, fits, expected in (
        ("port", 0 <= given.port <= 65_535, "0 to 65535"),
        (
            "lease_minutes",
            0 < given.lease_minutes <= _LONGEST_LEASE,
            f"more than 0 and at most {_LONGEST_LEASE}",
        ),
        ("gold_rate", 0 <= given.gold_rate <= 1, "0 to 1"),
        ("repeat_rate", 0 <= given.repeat_rate <= 1, "0 to 1"),
    ):
        if not fits:
            option = name.replace("_", "-")
            raise ValueError(f"serve: --{option} is {getattr(given, name)}, expected {expected}")


def _bind(listener: socket.socket, host: str, port: int) -> None:
    """Take the port.

    Raises:
        ValueError: somebody else has it.
    """
    try:
        listener.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(
            f"port {port} of {host} is taken, perhaps by another labelling page: close it, "
            "or take another (python -m feedback serve --port N)"
        ) from None


def _address(given: argparse.Namespace, port: int) -> str:
    """Where people open the page."""
    if given.behind_proxy:
        if not given.allow_host:
            raise ValueError("--behind-proxy: expected --allow-host NAME too, the proxy's name")
        return f"https://{given.allow_host[0]}"
    return f"http://{given.allow_host[0] if given.allow_host else given.host}:{port}"


def _server_params(given: argparse.Namespace, address: str) -> ServerParams:
    address_given: str | None = given.prefect_url
    params: dict[str, Any] = {"page_url": address}
    params["proxies"] = Proxies.of(given.behind_proxy, given.sign_in_header)
    params["prefect"] = local_prefect if address_given is None else lambda: address_given
    if given.guidelines is not None:
        params["guidelines"] = given.guidelines
    return ServerParams(hosts=(*LOCAL_HOSTS, given.host, *given.allow_host), **params)


def _serve_params(given: argparse.Namespace) -> ServeParams:
    return ServeParams(
        lease_ms=round(given.lease_minutes * 60_000),
        gold_rate=given.gold_rate,
        repeat_rate=given.repeat_rate,
    )


def _first_link(database: Database, address: str, store: str) -> str:
    """The address, recorded in the store for those who wait for people (`feedback.people`).

    Includes a token while nobody has one, so that the first person can sign in at once.
    """
    with database.writing() as connection:
        record(connection, "open", page=address)
        people = schema.annotators
        somebody = select(people.c.annotator_id).where(people.c.kind == "human").limit(1)
        if connection.execute(somebody).first() is not None:
            named = "" if store == usual_store() else f" --store {shlex.quote(shown(store))}"
            command = f"python -m feedback token NAME{named}"
            return f"{address} (to create a token, in this folder: {command})"
        token = accounts.new_token(connection, "me", role="lead", days=accounts.TOKEN_DAYS)
    return f"{address}/login#token={token} (this link signs you in as 'me')"


def publish(given: argparse.Namespace) -> int:
    """Publishes a round, or adds gold items."""
    with _opened(given.store) as database:
        if given.gold is not None:
            items = read_gold(given.gold)
            with database.writing() as connection:
                gold = publish_gold(connection, given.gold, items)
            _say(f"gold items: {gold.added} added, {gold.changed} changed, {gold.kept} kept")
            return 0
        if given.round_key is None:
            raise ValueError("publish: expected --round or --gold")
        if given.overlap is not None and not 1 <= given.overlap <= rounds.MOST_OVERLAP:
            found = f"--overlap is {given.overlap}"
            raise ValueError(f"publish: {found}, expected 1 to {rounds.MOST_OVERLAP}")
        default = Path("data/rounds") / given.round_key / "comparisons.jsonl"
        path = given.comparisons or default
        pairs = read_pairs(path)
        rounds.refuse_unpublishable(path, pairs, given.round_key)
        with database.writing() as connection:
            done = rounds.publish(connection, pairs, overlap=given.overlap, by=_user())
    _say(
        f"round {given.round_key}: {done.added} pairs added, {done.kept} kept, "
        f"{done.removed} removed"
    )
    return 0


def token(given: argparse.Namespace) -> int:
    """Prints a token, or resumes a paused annotator."""
    file = sqlite_file(given.store)
    if file is not None and not file.exists():  # Not on stdout, which is the token alone.
        sys.stderr.write(f"{file}: no such store yet; one is made, where only its page will look\n")
    with _opened(given.store) as database, database.writing() as connection:
        if given.resume:
            accounts.resume(connection, given.name, by=_user())
            _say(f"{given.name} resumed")
        else:
            _say(
                accounts.new_token(
                    connection,
                    given.name,
                    role="lead" if given.rights is not None else given.role,
                    days=given.days or None,
                    rights=accounts.RIGHTS if given.rights is None else given.rights.split(","),
                    by=_user(),
                )
            )
    return 0


def status(given: argparse.Namespace) -> int:
    """Prints rounds and people."""
    with _opened(given.store, existing=True) as database:
        with database.writing() as connection:
            # A token may have expired while no page was open.
            rounds.settle_without(connection)
        with database.reading() as connection:
            view = lead_view(connection, QualityParams())
            note = how_to_open(connection)
    shown = [one for one in view["rounds"] if given.round_key in (None, one.round)]
    if given.round_key is not None and not shown:
        raise ValueError(f"round {given.round_key} has not been published")
    if not shown:
        _say("no round has been published")
    for one in shown:
        state = "complete" if one.complete else f"waits for {one.missing} of {one.wanted} judgments"
        _say(f"round {one.round}: {one.settled} of {one.pairs} pairs settled, {state}")
    for row in view["people"]:
        flags = [*row["flags"], *([f"paused: {row['paused']}"] if row["paused"] else [])]
        _say(f"{row['name']}: {row['answers']} answers; {', '.join(flags) or 'no flags'}")
    waiting = [one for one in shown if not one.complete]
    if given.round_key is not None and waiting:
        (one,) = waiting
        raise MissingJudgmentsError(one.round, missing=one.missing, wanted=one.wanted, note=note)
    return 0


def export(given: argparse.Namespace) -> int:
    """Writes the judgments of a round."""
    with _opened(given.store, existing=True) as database:
        with database.reading() as connection:
            done = exporting.export(connection, given.round_key, given.form)
        with database.writing() as connection:
            exporting.log_export(connection, done, file=given.out.name, by=_user())
            _write_atomically(given.out, done.text)
    if given.form == "label-studio":
        given.out.with_suffix(".config.xml").write_text(CONFIG, encoding="utf-8")
    _say(f"{given.out}: {done.judgments} judgments of {done.pairs} pairs")
    return 0


def take_in(given: argparse.Namespace) -> int:
    """Reads judgments into the store; prints which are refused and why."""
    judgments = _read(given.form, given.file, given.round_key)
    with _opened(given.store, existing=True) as database, database.writing() as connection:
        done = take(connection, judgments, given.round_key)
    sys.stderr.writelines(f"{line}\n" for line in refusal_lines(done.refused))
    _say(
        f"{done.taken} judgments imported, {done.known} already known, {len(done.refused)} refused"
    )
    return 2 if done.refused and not done.taken and not done.known else 0


def back_up(given: argparse.Namespace) -> int:
    """Copies the store to a new file, while the page may be open."""
    labels = backup.back_up(given.store, given.file)
    with _opened(given.store) as database, database.writing() as connection:
        record(connection, "backup", file=given.file.name, n=labels, by=_user())
    _say(f"{given.file}: {labels} labels")
    return 0


def restore(given: argparse.Namespace) -> int:
    """Makes a store from a backup."""
    labels = backup.restore(given.file, given.store)
    with _opened(given.store) as database, database.writing() as connection:
        record(connection, "restore", file=given.file.name, n=labels, by=_user())
    _say(f"{given.store}: {labels} labels")
    return 0


def _read(form: str, path: Path, round_key: str) -> list[Judgment]:
    if form == "trl":
        return from_trl(list(json_rows(path)), round_key, source=path.stem[:64])
    return read_judgments(path) if form == "judgments" else read_export(path, round_key)


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(store: str, *, existing: bool = False) -> Iterator[Database]:
    """The store; with `existing` none is made, where its name may be misspelt."""
    if existing and (file := sqlite_file(store)) is not None and not file.exists():
        raise ValueError(f"{file}: no such store; `publish` and `serve` make one")
    database = Database(store)
    try:
        yield database
    finally:
        database.close()


def _user() -> str:
    """Who runs the command, for the log: the user's name on this machine, or the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

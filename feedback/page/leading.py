"""What a lead may do beside labelling: pause people, export judgments, publish rounds.

Each is a right of its own (`feedback.store.accounts.RIGHTS`), and the log says who used it.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from feedback.judgments import read_pairs
from feedback.page.access import may_change
from feedback.page.requests import ExportWish, PersonChange
from feedback.page.security import PUBLISH_PATH
from feedback.store import accounts, rounds
from feedback.store.accounts import Person, UnknownAnnotatorError
from feedback.store.database import Database
from feedback.store.exporting import ENDINGS, export, log_export
from feedback.store.submissions import refuse_if_paused
from preferences.records import JudgmentError


def lead_who_may(right: str) -> Callable[[Request], Person]:
    """A dependency: the lead who sent the request, if they have this right.

    It raises HTTPException: 403 for everybody else.
    """

    def find(request: Request) -> Person:
        person = may_change(request)
        if person.role != "lead":
            raise HTTPException(403, "only the lead may do this")
        if right not in person.rights:
            raise HTTPException(403, f"you have no right to {right} here")
        return person

    return find


def add_lead(app: FastAPI) -> None:
    """Adds the calls of the overview."""
    _add_pause(app)
    _add_export(app)
    _add_publish(app)


def _add_pause(app: FastAPI) -> None:
    @app.post("/api/lead/person")
    def change(
        request: Request,
        given: PersonChange,
        person: Annotated[Person, Depends(lead_who_may("pause"))],
    ) -> dict[str, bool]:
        by, name = person.annotator_id, given.annotator_id
        try:
            with request.app.state.database.writing() as connection:
                refuse_if_paused(connection, by)
                if given.paused:
                    accounts.pause(connection, name, "paused by the lead", by=by)
                else:
                    accounts.resume(connection, name, by=by)
        except UnknownAnnotatorError as error:
            raise HTTPException(404, str(error)) from error
        return {"ok": True}


def _add_export(app: FastAPI) -> None:
    @app.post("/api/lead/export")
    def hand_out(
        request: Request,
        given: ExportWish,
        person: Annotated[Person, Depends(lead_who_may("export"))],
    ) -> Response:
        by = person.annotator_id
        database = request.app.state.database
        try:
            with database.reading() as connection:
                refuse_if_paused(connection, by)
                done = export(connection, given.round, given.form)
        except ValueError as error:
            raise HTTPException(404, str(error)) from error
        with database.writing() as connection:
            refuse_if_paused(connection, by)
            log_export(connection, done, annotator_id=by)
        name = f"{given.round}-{given.form}.{ENDINGS[given.form]}"
        # As RFC 5987 writes it: a header is Latin-1, and a name may contain quotes and line ends.
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
        return Response(done.text, media_type="application/octet-stream", headers=headers)


def _add_publish(app: FastAPI) -> None:
    @app.post(PUBLISH_PATH)
    async def publish(
        request: Request,
        person: Annotated[Person, Depends(lead_who_may("publish"))],
        round_key: Annotated[str, Query(alias="round", pattern=r"^[A-Za-z0-9._-]{1,64}$")],
        overlap: Annotated[int | None, Query(ge=1, le=rounds.MOST_OVERLAP)] = None,
    ) -> dict[str, Any]:
        # Read only now, so that nobody without the right can make us keep so much.
        try:
            content = await request.body()
        except ClientDisconnect as error:
            raise HTTPException(400, "the file did not arrive") from error
        database, by = request.app.state.database, person.annotator_id
        return await run_in_threadpool(_publish, database, content, round_key, overlap, by)


def _publish(
    database: Database, content: bytes, round_key: str, overlap: int | None, by: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "comparisons.jsonl"
        path.write_bytes(content)
        try:
            pairs = read_pairs(path)
            rounds.refuse_unpublishable(path, pairs, round_key)
        except JudgmentError as error:
            raise HTTPException(422, str(error).replace(f"{folder}/", "")) from error
    if not pairs:
        raise HTTPException(422, "comparisons.jsonl: no pairs")
    with database.writing() as connection:
        refuse_if_paused(connection, by)
        done = rounds.publish(connection, pairs, overlap=overlap, by=by)
    return {"added": done.added, "kept": done.kept, "removed": done.removed}

"""The labelling page and its HTTP interface.

The browser knows only sides: it receives `left` and `right` and sends `left` or `right` back. Which
response is on which side is decided and stored here. Nothing that the browser receives names a
model, a pair or the purpose of an assignment.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from feedback.judgments import text_of
from feedback.page.access import (
    by_token,
    cookie_name,
    cookie_settings,
    forget_unknown_session,
    may_change,
    signed_in,
)
from feedback.page.guesses import Guesses
from feedback.page.lead import lead_view
from feedback.page.leading import add_lead
from feedback.page.proxies import NO_PROXIES, Proxies
from feedback.page.rendering import text_html
from feedback.page.requests import Login, NewJudgment, Undo
from feedback.page.security import Guard
from feedback.page.views import standing_of, task_view
from feedback.page.watch import Watch
from feedback.quality.annotators import QualityParams
from feedback.store import accounts
from feedback.store.accounts import Person
from feedback.store.assignments import ServeParams, Task, next_task
from feedback.store.database import Database
from feedback.store.exporting import ENDINGS
from feedback.store.submissions import RefusedError, submit, undo

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

_HERE = Path(__file__).parent
_TEMPLATES = Jinja2Templates(_HERE / "templates")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParams:
    """Settings of the server."""

    hosts: tuple[str, ...] = LOCAL_HOSTS
    """Host names under which it may be reached."""
    proxies: Proxies = NO_PROXIES
    """What stands in front of it; then it is reached by no other way, and over TLS."""
    guidelines: Path = _HERE / "guidelines.md"
    """Markdown shown beside the pairs; its hash is stored with each label."""
    prefect: Callable[[], str | None] = lambda: None
    """Finds the address of Prefect's API, which receives an event when a round is complete; None:
    no event for now."""
    page_url: str = "http://127.0.0.1:8765"
    """Where people open the page; part of the event."""


def create_app(
    database: Database,
    params: ServerParams,
    *,
    serve: ServeParams | None = None,
    quality: QualityParams | None = None,
) -> FastAPI:
    """The application over an open store.

    Raises:
        OSError: the guidelines cannot be read.
        JudgmentError: they are missing, no regular file or not UTF-8.
    """
    quality = quality or QualityParams()
    watch = Watch(database, quality, prefect=params.prefect, page_url=params.page_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch.start()
        yield
        await asyncio.to_thread(watch.stop)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    text = text_of(params.guidelines)
    app.state.database = database
    app.state.guesses = Guesses()
    app.state.desk = _Desk(serve or ServeParams(), quality, text, watch.ring)
    app.state.csrf_key = secrets.token_bytes(32)
    app.state.secure = bool(params.proxies)
    app.add_middleware(Guard, hosts=params.hosts, proxies=params.proxies)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(OperationalError, _store_fails)
    _add_pages(app)
    _add_work(app)
    add_lead(app)
    return app


class _Desk:
    """State shared by the handlers: parameters, guidelines and the watch's bell."""

    def __init__(
        self, serve: ServeParams, quality: QualityParams, text: str, ring: Callable[[], None]
    ) -> None:
        self.serve, self.quality, self.ring = serve, quality, ring
        self.guidelines_html = text_html(text)
        self.guideline_hash = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]

    def work(self, connection: Connection, person: Person) -> dict[str, Any]:
        """What the page shows next: a pair (a `Task`, see `_shown`), nothing left, or a pause."""
        name = person.annotator_id
        # Read here, not when signing in: a pause may have come in between.
        reason = accounts.paused_reason(connection, name)
        if reason is not None:
            return {"state": "paused", "reason": reason, **standing_of(connection, name, None)}
        task = next_task(connection, name, self.serve)
        if task is None:
            return {"state": "empty", **standing_of(connection, name, None)}
        standing = standing_of(connection, name, task.round)
        return {"state": "pair", "task": task, **standing}


def _shown(view: dict[str, Any], desk: _Desk) -> dict[str, Any]:
    """What the browser receives. Call it without a transaction: long texts take seconds."""
    task = {"task": task_view(view["task"])} if "task" in view else {}
    return {**view, **task, "guidelines": desk.guideline_hash}


def _is_of(view: dict[str, Any], task: Task) -> bool:
    shown: Task | None = view.get("task")
    return shown is not None and shown.assignment_id == task.assignment_id


def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=409)


def _malformed(_: Request, error: Exception) -> Response:
    # Names the problem without echoing the input, which may not even be text.
    assert isinstance(error, RequestValidationError)
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in error.errors()
    ]
    return JSONResponse({"detail": "; ".join(problems)}, status_code=422)


def _store_fails(_: Request, error: Exception) -> Response:
    # A full disk, say: the page sends everything again until it is confirmed.
    _log.error("the store fails: %s", str(error).splitlines()[0])
    return JSONResponse({"detail": "the store fails; try again"}, status_code=503)


def _page(request: Request, name: str, person: Person | None, **values: Any) -> HTMLResponse:
    desk: _Desk = request.app.state.desk
    shown = {"person": person, "version": desk.guideline_hash, **values}
    return _TEMPLATES.TemplateResponse(request, name, shown)


def _to_login(request: Request) -> Response:
    response = RedirectResponse("/login", status_code=303)
    forget_unknown_session(request, response)
    return response


def _add_pages(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse)
    def annotate(request: Request) -> Response:
        person = signed_in(request)
        if person is None:
            return _to_login(request)
        html = request.app.state.desk.guidelines_html
        return _page(request, "annotate.html", person, guidelines=html)

    @app.get("/login", response_class=HTMLResponse)
    def login(request: Request) -> Response:
        if request.state.signed_in_by_proxy is not None:
            return RedirectResponse("/", status_code=303)
        return _page(request, "login.html", None)

    @app.get("/lead", response_class=HTMLResponse)
    def lead(request: Request) -> Response:
        person = signed_in(request)
        if person is None or person.role != "lead":
            return _to_login(request)
        with request.app.state.database.reading() as connection:
            view = lead_view(connection, request.app.state.desk.quality)
        return _page(request, "lead.html", person, view=view, forms=ENDINGS)

    @app.get("/health")
    def health() -> dict[str, bool]:
        return {"ok": True}


def _add_work(app: FastAPI) -> None:
    @app.post("/api/login")
    def login(request: Request, given: Login) -> Response:
        person = by_token(request, given.token)
        if person is None:
            raise HTTPException(401, "unknown token; ask for a new one")
        with request.app.state.database.writing() as connection:
            session = accounts.open_session(connection, person.annotator_id)
        response = JSONResponse({"ok": True, "role": person.role})
        age = accounts.SESSION_MS // 1000
        response.set_cookie(cookie_name(request), session, max_age=age, **cookie_settings(request))
        return response

    @app.post("/api/logout")
    def logout(request: Request, _: Annotated[Person, Depends(may_change)]) -> Response:
        with request.app.state.database.writing() as connection:
            accounts.close_session(connection, request.cookies.get(cookie_name(request), ""))
        response = JSONResponse({"ok": True})
        response.delete_cookie(cookie_name(request), **cookie_settings(request))
        return response

    @app.post("/api/task")
    def task(request: Request, person: Annotated[Person, Depends(may_change)]) -> dict[str, Any]:
        desk: _Desk = request.app.state.desk
        with request.app.state.database.writing() as connection:
            view = desk.work(connection, person)
        return _shown(view, desk)

    @app.post("/api/judgments")
    def judge(
        request: Request, given: NewJudgment, person: Annotated[Person, Depends(may_change)]
    ) -> dict[str, Any]:
        desk: _Desk = request.app.state.desk
        with request.app.state.database.writing() as connection:
            fresh = submit(connection, person.annotator_id, given.submission(desk.guideline_hash))
            view = desk.work(connection, person)
        desk.ring()
        return {"saved": True, "fresh": fresh, **_shown(view, desk)}

    @app.post("/api/undo")
    def take_back(
        request: Request, given: Undo, person: Annotated[Person, Depends(may_change)]
    ) -> dict[str, Any]:
        desk: _Desk = request.app.state.desk
        with request.app.state.database.writing() as connection:
            lease = desk.serve.lease_ms
            undone = undo(connection, person.annotator_id, key=given.key, lease_ms=lease)
            view = desk.work(connection, person)
        # Not where others have settled it meanwhile.
        back = undone is not None and _is_of(view, undone)
        return {"undone": undone is not None, "back": back, **_shown(view, desk)}

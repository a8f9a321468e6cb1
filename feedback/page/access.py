"""Who sent a request, and whether it may change anything."""

import secrets

from fastapi import HTTPException, Request

from feedback.store import accounts
from feedback.store.accounts import Person

COOKIE = "feedback_session"
"""The browser's session: HttpOnly, SameSite=Strict."""


def signed_in(request: Request) -> Person | None:
    """The annotator behind a bearer token or a browser's session."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    with request.app.state.database.reading() as connection:
        if scheme.lower() == "bearer" and token:
            return accounts.by_token(connection, token.strip())
        session = request.cookies.get(COOKIE)
        return accounts.by_session(connection, session) if session else None


def may_change(request: Request) -> Person:
    """The annotator, if the request provably comes from our own page.

    Raises:
        HTTPException: 401 if nobody is signed in, 403 if the CSRF token is wrong.
    """
    person = signed_in(request)
    if person is None:
        raise HTTPException(401, "sign in first")
    if person.csrf is not None:
        sent = request.headers.get("x-csrf-token", "")
        if not secrets.compare_digest(sent.encode(), person.csrf.encode()):
            raise HTTPException(403, "this page is out of date; reload it")
    return person

"""Who sent a request, and whether it may change anything."""

import hashlib
import hmac
import secrets
from typing import Any

from fastapi import HTTPException, Request, Response

from feedback.page.guesses import Guesses
from feedback.store import accounts
from feedback.store.accounts import ExpiredTokenError, Person

COOKIE = "feedback_session"
"""The browser's session at the usual port: HttpOnly, SameSite=Strict."""
_USUAL_PORTS = frozenset({"", "8765"})


def signed_in(request: Request) -> Person | None:
    """The annotator whom the proxy names, or behind a bearer token or a browser's session.

    Raises:
        HTTPException: 429 while tokens of this address are not looked at; 403 if the proxy names
            somebody who was not let in, or is no longer.
    """
    name: str | None = request.state.signed_in_by_proxy
    if name is not None:
        return _by_name(request, name)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return by_token(request, token.strip())
    session = request.cookies.get(cookie_name(request))
    if not session:
        return None
    with request.app.state.database.reading() as connection:
        person = accounts.by_session(connection, session)
    # No guess: nobody finds 256 random bits, and old cookies lock nobody out.
    request.state.session_unknown = person is None
    return person


def cookie_name(request: Request) -> str:
    """The session's cookie at the port that the browser sees.

    Browsers send cookies to all ports of a host, where pages of other stores may be open.
    """
    _, _, port = request.headers["host"].rpartition("]")[2].partition(":")
    return COOKIE if port in _USUAL_PORTS else f"{COOKIE}_{port}"


def cookie_settings(request: Request) -> dict[str, Any]:
    """How the session's cookie is sent; over TLS only, where there is TLS."""
    return {"httponly": True, "samesite": "strict", "secure": request.app.state.secure}


def forget_unknown_session(request: Request, response: Response) -> None:
    """Deletes the browser's cookie if `signed_in` has found that its session has ended."""
    if getattr(request.state, "session_unknown", False):
        response.delete_cookie(cookie_name(request), **cookie_settings(request))


def _by_name(request: Request, name: str) -> Person:
    """The annotator of this name, with a CSRF token: the proxy signs in other sites' requests too.

    The token lasts until the server stops; the page then says that it is out of date.
    """
    key: bytes = request.app.state.csrf_key
    csrf = hmac.new(key, name.encode("utf-8"), hashlib.sha256).hexdigest()
    try:
        with request.app.state.database.reading() as connection:
            person = accounts.by_name(connection, name, csrf)
    except ExpiredTokenError as error:
        raise HTTPException(403, f"your token expired on {error}; ask for a new one") from error
    if person is None:
        raise HTTPException(
            403, f"nobody is called {name!r} here; `python -m feedback token NAME` lets NAME in"
        )
    return person


def by_token(request: Request, token: str) -> Person | None:
    """The annotator who has this token; a wrong one is counted against its address.

    Raises:
        HTTPException: 429 while tokens of this address are not looked at; 401 if it has expired.
    """
    guesses: Guesses = request.app.state.guesses
    address = address_of(request)
    wait = guesses.wait_s(address)
    if wait:
        raise HTTPException(
            429,
            f"too many wrong tokens from your address; try again in {wait} s",
            headers={"Retry-After": str(wait)},
        )
    try:
        with request.app.state.database.reading() as connection:
            person = accounts.by_token(connection, token)
    except ExpiredTokenError as error:
        raise HTTPException(401, f"your token expired on {error}; ask for a new one") from error
    if person is None:
        guesses.wrong(address)
    return person


def address_of(request: Request) -> str:
    """The address that the request comes from."""
    return request.client.host if request.client else "nowhere"


def may_change(request: Request) -> Person:
    """The annotator, if the request provably comes from our own page.

    Raises:
        HTTPException: 401 if nobody is signed in, 403 if the CSRF token is wrong.
    """
    person = signed_in(request)
    if person is None:
        response = Response()
        forget_unknown_session(request, response)
        cookie = response.headers.get("set-cookie")
        headers = {"Set-Cookie": cookie} if cookie else None
        raise HTTPException(401, "sign in first", headers=headers)
    if person.csrf is not None:
        sent = request.headers.get("x-csrf-token", "")
        if not secrets.compare_digest(sent.encode(), person.csrf.encode()):
            raise HTTPException(403, "this page is out of date; reload it")
    return person

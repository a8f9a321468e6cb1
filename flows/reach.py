"""Whether the Prefect server that `PREFECT_API_URL` names responds, and lets us in.

Asked before anything starts: Prefect itself would end in a traceback in the middle.
"""

import os
from urllib.parse import urlsplit

import httpx

from tasks.params.redaction import redact

_REFUSALS = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


class ReachError(Exception):
    """The server cannot be used; the message is one line that names the variable."""


def require_address() -> None:
    """Check `PREFECT_API_URL` before Prefect is imported, which reads it then.

    Raises:
        ReachError: it is no address of the web.
    """
    try:
        found = urlsplit(os.environ["PREFECT_API_URL"])
        is_one = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ReachError(
            "PREFECT_API_URL: expected an address such as http://127.0.0.1:4200/api, found "
            f"{redact(os.environ['PREFECT_API_URL'])}"
        )


def require_prefect() -> None:
    """Do nothing where the server can be used.

    Raises:
        ReachError: it cannot be reached, is none, or refuses our password.
    """
    # Imported here: Prefect takes its settings when it is imported, and callers make them first.
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    address = redact(os.environ["PREFECT_API_URL"])
    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools(limit=1)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in _REFUSALS:
            given = os.environ.get("PREFECT_API_AUTH_STRING")
            words = "refuses it" if given else "asks for a password, found none"
            raise ReachError(f"PREFECT_API_AUTH_STRING: the server at {address} {words}") from None
        raise _absence(address, f"it answers {error.response.status_code}") from None
    except (httpx.HTTPError, RuntimeError, ValueError) as error:
        # Prefect says of all but a version that does not match that it has failed. What is no JSON
        # is a page of some other server.
        raise _absence(address, str(error.__cause__ or error)) from None


def is_absence(error: httpx.HTTPError) -> bool:
    """Whether a request has failed because the server is away, or says so: a proxy answers 502."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (502, 503, 504)
    return isinstance(error, httpx.TransportError)


def _absence(address: str, reason: str) -> ReachError:
    words = " ".join(redact(reason).split())
    hint = (
        "" if "/api" in urlsplit(address).path else ". Addresses of Prefect's servers end in /api"
    )
    return ReachError(
        f"PREFECT_API_URL: expected a Prefect server at {address}, found none: {words}{hint}"
    )

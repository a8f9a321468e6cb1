"""The password of the Prefect server that this workspace runs.

Whoever can talk to the server can have commands run as the user (a deployment's `pull_steps`). So
it asks for a password, which is made here, kept in a file that only its owner can read, and handed
to our own processes (`PREFECT_API_AUTH_STRING`) and to the person's browser (`sign_in`).
"""

import base64
import os
import secrets
from pathlib import Path

AUTH_FILE = "auth"
"""Below `PREFECT_HOME`; survives restarts, so that a page that is open stays signed in."""
SIGN_IN = "/sign-in"
"""Page of the server that takes the password from the address and keeps it in the browser."""
_OTHERS = 0o077


def auth_string(home: Path) -> str:
    """The password of the server over `home`, made if there is none.

    A file that others could read has been read: a new password takes its place. So does one where
    the file is empty, as after a full disk.
    """
    path = home / AUTH_FILE
    is_private = path.exists() and not path.stat().st_mode & _OTHERS
    if is_private and (known := path.read_text(encoding="utf-8").strip()):
        return known
    made = secrets.token_urlsafe(32)
    draft = home / f"{AUTH_FILE}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{made}\n")
    draft.replace(path)
    return made


def client_settings(address: str, home: Path) -> dict[str, str]:
    """What a process of ours needs to talk to the server at `address`."""
    password = (home / AUTH_FILE).read_text(encoding="utf-8").strip()
    return {"PREFECT_API_URL": f"{address}/api", "PREFECT_API_AUTH_STRING": password}


def authorization(password: str) -> str:
    """The value of the header `Authorization`."""
    return f"Basic {base64.b64encode(password.encode()).decode()}"


def sign_in(address: str, password: str, page: str = "") -> str:
    """The address that signs a browser in and shows `page`.

    The password stands behind the `#`: browsers send it to nobody.
    """
    return f"{address}{SIGN_IN}{page}#{password}"


def make_private(folder: Path) -> None:
    """Take the files and folders directly in `folder` from everybody but their owner."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [folder, *folder.iterdir()]:
        if not path.is_symlink() and path.stat().st_uid == os.getuid():
            path.chmod(path.stat().st_mode & ~_OTHERS)

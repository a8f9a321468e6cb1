"""A name for a user id without an account, as a container has with `docker run --user 12345`."""

import getpass
import os


def account() -> dict[str, str]:
    """Variables for DVC, which asks for the user's name: empty where the user has one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        return {"USER": str(os.getuid())}
    return {}

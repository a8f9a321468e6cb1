"""Words on stderr that end nothing where nobody can take them any more.

A Ctrl-C at `make repro 2>&1 | tee log` ends `tee` first, and a closed terminal takes no more words.
"""

import contextlib
import os
import sys


def say(text: str) -> None:
    """Write to stderr as far as somebody reads it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError):
            _drop_what_is_held_back()


def say_in_a_handler(text: str) -> None:
    """The same from the handler of a signal, where a `print` may be in progress."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _drop_what_is_held_back() -> None:
    """Python keeps what it could not write, and at its end would fail by it once more."""
    place = sys.stderr.fileno()
    kept, nobody = os.dup(place), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, place)
    sys.stderr.flush()
    os.dup2(kept, place)
    os.close(kept)
    os.close(nobody)

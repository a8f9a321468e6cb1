"""Processes of tests that run in the background themselves."""

import signal


def hear_signals() -> None:
    """For `preexec_fn`: hear Ctrl-C and the end of a terminal.

    What runs in the background, or under nohup, ignores them, and children inherit that.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

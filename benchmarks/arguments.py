"""Values that options of benchmarks have in common."""

import argparse


def positive(text: str) -> int:
    """A whole number above zero, as argparse's `type`.

    Raises:
        argparse.ArgumentTypeError: it is none; argparse ends the command with 2 then.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)

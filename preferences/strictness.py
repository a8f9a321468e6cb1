"""How strict `check` is: the options that stand for section `validate` of params.yaml."""

import argparse
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NoReturn, get_args

from preferences.params import Bounds, Severities, Severity, ValidateParams
from preferences.reader import MalformedDataError

_RULES = tuple(rule.name for rule in fields(Severities))
_NUMBERS = tuple(number.name for number in fields(Bounds))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options; each may be given repeatedly, except `--ties`."""
    for name, metavar, what in (
        (
            "severity",
            "RULE=SEVERITY",
            "error, quarantine, warn or off; for a number not quarantine",
        ),
        ("limit", "RULE=LIMIT", "largest share of rows that may break it; a number's bound"),
        ("personal", "NAME=REGEX", "a further kind of personal data"),
    ):
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=what)
    parser.add_argument(
        "--ties", choices=("drop", "half"), default="drop", help="what becomes of ties (drop)"
    )


def params_of(options: argparse.Namespace) -> ValidateParams:
    """The defaults of params.yaml with what the options change.

    Raises:
        MalformedDataError: an option names no rule or number, or its value is impossible.
    """
    severities, bounds = Severities(), Bounds()
    limits: dict[str, float] = {}
    for name, value in _entries("severity", options.severity):
        allowed = get_args(Severity) if name in _RULES else ("error", "warn", "off")
        if value not in allowed:
            _refuse(f"--severity {name}: expected one of {', '.join(allowed)}, got {value}")
        changed: dict[str, Any] = {name: value}
        if name in _RULES:
            severities = replace(severities, **changed)
        else:
            bounds = replace(bounds, **{name: replace(getattr(bounds, name), severity=value)})
    for name, value in _entries("limit", options.limit):
        number = _number(name, value)
        if name in _RULES:
            limits[name] = number
        else:
            bounds = replace(bounds, **{name: replace(getattr(bounds, name), limit=number)})
    own = dict(_split("personal", entry) for entry in options.personal)
    try:
        return ValidateParams(
            ties=options.ties,
            severities=severities,
            limits=limits,
            bounds=bounds,
            personal_patterns=own,
        )
    except ValueError as error:
        _refuse(str(error))


def _entries(option: str, given: Iterable[str]) -> Iterable[tuple[str, str]]:
    for entry in given:
        name, value = _split(option, entry)
        if name not in (*_RULES, *_NUMBERS):
            known = ", ".join((*_RULES, *_NUMBERS))
            _refuse(f"--{option} {entry}: no such rule or number; expected one of {known}")
        yield name, value


def _split(option: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not (name and equals and value):
        _refuse(f"--{option} {entry}: expected a name, an equals sign and a value")
    return name, value


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        _refuse(f"--limit {name}: expected a number, got {value}")
    if not abs(number) < float("inf"):
        _refuse(f"--limit {name}: expected a finite number, got {value}")
    return number


def _refuse(problem: str) -> NoReturn:
    # Escaped, so that no control character reaches a terminal.
    raise MalformedDataError([problem.encode("unicode_escape").decode("ascii")], 1) from None

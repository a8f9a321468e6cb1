import argparse

import pytest

from preferences.params import ValidateParams
from preferences.reader import MalformedDataError
from preferences.strictness import add_options, params_of


def params(*arguments):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return params_of(parser.parse_args(arguments))


def test_without_options_the_defaults_hold():
    assert params() == ValidateParams()


def test_severities_and_limits_of_rules_and_numbers_are_set():
    found = params(
        "--severity", "html_remains=error", "--limit", "html_remains=0.1", "--ties", "half",
        "--severity", "longer_wins=error", "--limit", "longer_wins=0.6",
        "--personal", r"staff=EMP-\d=\d",
    )  # fmt: skip
    assert found.severities.html_remains == "error"
    assert found.severities.duplicates == "quarantine"
    assert found.limit("html_remains") == 0.1
    assert (found.bounds.longer_wins.severity, found.bounds.longer_wins.limit) == ("error", 0.6)
    assert found.bounds.first_wins.limit == ValidateParams().bounds.first_wins.limit
    assert found.ties == "half"
    assert found.personal_patterns == {"staff": r"EMP-\d=\d"}


@pytest.mark.parametrize(
    "limit", ["longer_wins=1", "first_wins=0.5", "agreement=-1", "weak_annotators=3"]
)
def test_the_ends_of_what_a_number_can_be_are_limits(limit):
    name, _, value = limit.partition("=")
    assert getattr(params("--limit", limit).bounds, name).limit == float(value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--severity", "html=error"), "html=error: no such rule or number; expected one of blank"),
        (("--severity", "html_remains=bad"), "html_remains: expected one of error, quarantine"),
        (("--severity", "longer_wins=quarantine"), "longer_wins: expected one of error, warn, off"),
        (("--severity", "html_remains"), "expected a name, an equals sign and a value"),
        (("--limit", "html_remains=2"), "limits.html_remains is 2.0, expected 0 to 1"),
        (("--limit", "html_remains=half"), "html_remains: expected a number, got half"),
        (("--limit", "longer_wins=70"), "bounds.longer_wins.limit is 70.0, expected 0 to 1"),
        (("--limit", "first_wins=-0.1"), "bounds.first_wins.limit is -0.1, expected 0 to 0.5"),
        (("--limit", "longer_wins=nan"), "longer_wins: expected a finite number, got nan"),
        (("--limit", "\x1b[31m=1"), r"\x1b[31m=1: no such rule"),
        (("--personal", "staff=("), "personal_patterns.staff is (, expected a regular expression"),
        (
            ("--personal", "staff=x*"),
            "personal_patterns.staff is x*, expected a regular expression",
        ),
    ],
)
def test_what_names_no_rule_or_is_no_value_is_refused_in_one_line(arguments, says):
    with pytest.raises(MalformedDataError) as error:
        params(*arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)

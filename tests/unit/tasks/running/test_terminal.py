"""What a model or a server writes does not steer the terminal of `make chat`, or of a stage."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlhf.templates import TemplateError
from tasks.chat import Speaker, _answer_lines, _converse, _pieces
from tasks.running.terminal import harmless
from tests.unit.tasks.running.conftest import Workplace


class Says:
    """A policy that was trained on what somebody wants to do to a terminal."""

    def __init__(self, *pieces: str, error: str = "") -> None:
        self.pieces, self.error = pieces, error

    def respond(self, _message: str):
        yield from self.pieces
        if self.error:
            raise TemplateError(self.error)


CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsfHNo\x07"


@pytest.mark.parametrize("policy", [Says("Sure", CLIPBOARD, "\n"), Says(error=CLIPBOARD)])
def test_neither_responses_nor_errors_of_a_model_steer_the_terminal(policy: Says) -> None:
    said = "".join(_pieces(Speaker("policy", "", policy), "hello"))  # type: ignore[arg-type]

    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\N{SYMBOL FOR ESCAPE}]52;c;" in said


def test_words_of_all_languages_stay_as_they_are() -> None:
    text = "caf\u00e9\u00a0\u05e9\u05dc\u05d5\u05dd \U0001f469\u200d\U0001f680\ttab\nline"
    assert harmless(text) == text
    assert harmless("\x9b2J \u202eexe.txt\r") == "\\u009b2J \\u202eexe.txt\u240d"


class Remembers:
    """A policy that responds with all that was said to it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def respond(self, message: str):
        self.said.append(message)
        yield " and ".join(self.said)

    def reset(self) -> None:
        self.said.clear()


class Loaded:
    def __init__(self, *policies: Says | Remembers) -> None:
        self.policies = policies

    def speakers(self) -> list[Speaker]:
        return [Speaker(f"p{n}", "", one) for n, one in enumerate(self.policies)]  # type: ignore[arg-type]


@pytest.mark.parametrize("chat", [_answer_lines, _converse])
def test_all_who_respond_forget_and_nothing_is_said_after_leaving(
    chat: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n/reset\nthree\n/quit\nfour\n"))

    chat(Loaded(Remembers(), Remembers()))

    out = capsys.readouterr().out.replace("\t", ": ").splitlines()
    lines = [line.removeprefix("> ") for line in out]
    assert [line for line in lines if line.startswith("p") and line[4:]] == [
        f"{name}: {said}" for said in ("one", "one and two", "three") for name in ("p0", "p1")
    ]


def test_a_response_of_several_lines_is_one_line_of_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who reads the output counts lines, and finds the response behind the tab."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))

    _answer_lines(Loaded(Says("Dear\tZara,\n\n", " thank you"), Says(error="a\nb")))  # type: ignore[arg-type]

    assert capsys.readouterr().out == "p0\tDear Zara, thank you\np1\t(a b)\n"


def test_no_server_steers_the_terminal_by_what_a_stage_says_of_it(place: Workplace) -> None:
    """An endpoint that judges, or a model's folder: their words are in errors and warnings."""
    said = repr(f"the endpoint answered 400 ({CLIPBOARD})")
    code, err = place.run(
        f"import logging\nlogging.getLogger('tasks.scoring').warning('%s', {said})\n"
        f"raise StageEnd('failed', {said})"
    )

    assert code == 1
    assert err.count("the endpoint answered 400 (\N{SYMBOL FOR ESCAPE}]52;c;") == 2
    for text in (err, place.outcome()["message"], place.finish()["message"]):
        assert "\x1b" not in text
        assert "\x07" not in text

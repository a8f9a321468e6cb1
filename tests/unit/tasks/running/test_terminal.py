"""What a model writes does not steer the terminal of `make chat`."""

import pytest

from rlhf.templates import TemplateError
from tasks.chat import Speaker, _pieces
from tasks.running.terminal import harmless


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

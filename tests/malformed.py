"""Over a hundred damaged files, made here and not collected; those with a damaged row stand here.

    python -m tests.malformed FOLDER

writes them all, and the sound ones. Each damaged file has exactly one thing wrong with it, beside
rows that are fine, and the words that its error has to hold: the place, what was expected and what
was found.
"""

import sys
from pathlib import Path
from typing import Any

from tests.damaged_files import DAMAGED_FILES
from tests.file_cases import GOOD, OWN, SCORED, TASK, UNPAIRED, VOTES, Case, good_lines, line
from tests.sound_files import SOUND


def _raw(name: str, damage: bytes, *says: str, suffix: str = ".jsonl") -> Case:
    """Three good lines, then the damage in line 4."""
    file = f"{name}{suffix}"
    return Case(file, lambda path: path.write_bytes(good_lines() + damage + b"\n"), (":4: ", *says))


def _row(name: str, row: object, *says: str) -> Case:
    """Three good lines, then a row with something wrong."""
    return _raw(name, line(row).rstrip(b"\n"), *says)


def _of(name: str, base: dict[str, Any], changes: dict[str, Any], *says: str) -> Case:
    """A good row of another format, then one that differs."""
    rows = line(base) + line({**base, **changes})
    return Case(f"{name}.jsonl", lambda path: path.write_bytes(rows), (":2: ", *says))


def _good(**changes: Any) -> dict[str, Any]:
    return {**GOOD[3], **changes}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD[3].items() if key != name}


_NOT_JSON = (
    _raw("cut_off", b'{"prompt": "p", "chosen": "a", "rej', "not JSON"),
    _raw("single_quotes", b"{'prompt': 'p'}", "not JSON"),
    _raw("trailing_comma", b'{"prompt": "p", "chosen": "a", "rejected": "b",}', "not JSON"),
    _raw("two_objects", b'{"prompt": "p"}{"prompt": "q"}', "not JSON"),
    _raw("comment", b'// {"prompt": "p"}', "not JSON"),
    _raw("plain_text", b"Where is my parcel?", "not JSON"),
    _raw("bare_words", b"{prompt: p}", "not JSON"),
    _raw("raw_tab", b'{"prompt": "a\tb", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("bad_escape", rb'{"prompt": "\x41", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("half_escape", rb'{"prompt": "\u12", "chosen": "a", "rejected": "b"}', "not JSON"),
    _raw("hex_number", b'{"prompt": "p", "chosen": 0x1f}', "not JSON"),
    _raw("leading_zero", b'{"prompt": "p", "margin": 01}', "not JSON"),
    _raw("bom_inside", b'\xef\xbb\xbf{"prompt": "p"}', "not JSON"),
    _raw("nan", b'{"prompt": "p", "chosen": NaN}', "NaN is not a JSON number"),
    _raw("infinity", b'{"prompt": "p", "chosen": -Infinity}', "-Infinity is not a JSON number"),
    _raw(
        "huge_number", b'{"prompt": "p", "margin": 1e999}', 'field "margin"', "fits a 64-bit float"
    ),
    _raw("huge_integer", b'{"prompt": "p", "margin": 1' + b"0" * 400 + b"}", "at most 64 bits"),
    _raw("many_digits", b'{"margin": ' + b"9" * 5000 + b"}", "fewer digits"),
    _raw("twice", b'{"prompt": "p", "prompt": "q"}', 'field "prompt": occurs twice'),
    _raw("nul", rb'{"prompt": "a\u0000b", "chosen": "a"}', 'field "prompt"', "NUL"),
    _raw("lone_surrogate", rb'{"prompt": "\ud83d", "chosen": "a"}', "surrogate", "U+D83D"),
    _raw("latin_1", '{"prompt": "café"}'.encode("latin-1"), "not UTF-8: byte 0xe9"),
    _raw("utf_16", '{"prompt": "p"}'.encode("utf-16"), "not UTF-8: byte 0xff"),
    _raw("overlong", b'{"prompt": "\xc0\xaf"}', "not UTF-8: byte 0xc0"),
    _raw("cesu", b'{"prompt": "\xed\xa0\xbd\xed\xb8\x80"}', "not UTF-8: byte 0xed"),
    _raw("deep", b'{"prompt": ' + b"[" * 40 + b"]" * 40 + b"}", "nested more than 16 levels deep"),
    _raw("abyss", b'{"prompt": ' + b"[" * 100_000, "nested more than 16 levels deep"),
    _raw("long_row", b'{"prompt": "' + b"x" * (4 << 20) + b'"}', "over 4,194,304 bytes"),
)
_NO_ROW = (
    _row("a_list", ["p", "a", "b"], "expected an object, got a list"),
    _row("a_number", 7, "expected an object, got 7"),
    _row("null_row", None, "expected an object, got null"),
    _row("a_text", "row", 'expected an object, got "row"'),
)
_FIELDS = (
    _row("null_answer", _good(chosen=None), 'field "chosen": expected text or messages, got null'),
    _row("number_answer", _good(rejected=3), 'field "rejected": expected text or messages, got 3'),
    _row("true_prompt", _good(prompt=True), 'field "prompt": expected text or messages, got true'),
    _row("object_answer", _good(chosen={"text": "a"}), "expected text or messages, got an object"),
    _row("no_chosen", _without("chosen"), 'field "chosen": missing'),
    _row("no_rejected", _without("rejected"), 'field "rejected": missing'),
    _row("misspelt", {**_without("chosen"), "choosen": "a"}, 'field "chosen": missing'),
    _row("text_margin", _good(margin="big"), 'field "margin": expected a number, got "big"'),
    _row("large_margin", _good(margin=2**60), 'field "margin": expected an integer up to'),
    _row("negative_weight", _good(weight=-1), 'field "weight": expected at least 0, got -1'),
    _row("other_split", _good(split="dev"), 'field "split": expected one of train, heldout'),
    _row("blank_prompt_id", _good(prompt_id=" "), 'field "prompt_id": expected text, got " "'),
    _row("no_messages", _good(prompt=[]), "an empty list"),
    _row("other_role", _good(prompt=[{"role": "bot", "content": "x"}]), 'role is "bot"'),
    _row("no_content", _good(prompt=[{"role": "user"}]), "message 1: expected"),
    _row(
        "null_content",
        _good(prompt=[{"role": "user", "content": None}]),
        "message 1: content: expected text, got null",
    ),
    _row(
        "parts_as_content",
        _good(prompt=[{"role": "user", "content": [{"type": "text", "text": "p"}]}]),
        "message 1: content: expected text, got a list",
    ),
    _row("mixed_sides", _good(chosen=[{"role": "assistant", "content": "a"}]), "one is text"),
    _row(
        "answer_by_user",
        _good(
            chosen=[{"role": "user", "content": "a"}], rejected=[{"role": "user", "content": "b"}]
        ),
        "a single assistant message",
    ),
)
_FORMATS = (
    _of("own_wrong_id", OWN, {"pair_id": "1ec0ffeeec0ffeee"}, 'field "pair_id": expected'),
    _of("own_unknown", OWN, {"mood": "grim"}, 'field "mood": unknown; preferences have pair_id'),
    _of("vote_unknown", VOTES, {"votes": ["left"]}, 'field "votes": expected one of a, b, tie'),
    _of("votes_unequal", VOTES, {"votes": ["a", "b"]}, "found 2 votes and 1 workers"),
    _of(
        "votes_twice", VOTES, {"votes": ["a", "b"], "workers": ["x", "x"]}, "a worker occurs twice"
    ),
    _of("votes_nameless", VOTES, {"workers": [" "]}, 'field "workers": expected a list of names'),
    _of("scores_short", SCORED, {"scores": [1]}, "2 responses and 1 scores"),
    _of(
        "scores_text", SCORED, {"scores": ["1", "0"]}, 'field "scores": expected a list of numbers'
    ),
    _of(
        "scores_huge",
        SCORED,
        {"scores": [10**400, 1]},
        'field "scores": expected an integer of at most',
    ),
    _of(
        "scores_far",
        SCORED,
        {"scores": [1.7e308, -1.7e308]},
        'field "scores": the difference between two',
    ),
    _of("scores_and_ranks", SCORED, {"ranks": [1, 2]}, 'expected either "scores" or "ranks"'),
    _of(
        "one_answer",
        SCORED,
        {"responses": ["a"], "scores": [1]},
        "1 responses",
        "expected equal numbers",
    ),
    _of("answers_null", SCORED, {"responses": ["a", None]}, "expected a list of texts"),
    _of("label_text", UNPAIRED, {"label": "good"}, 'field "label": expected true or false'),
    _of("task_empty", TASK, {"data": {"prompt": "p"}}, 'data: field "response_a": missing'),
    _of("task_result", TASK, {"annotations": [{"result": []}]}, "annotation 1: no pairwise"),
    _of("task_null", TASK, {"annotations": [{"result": [{"value": None}]}]}, "no pairwise"),
    _of(
        "task_choices",
        TASK,
        {"annotations": [{"result": [{"value": {"choices": None}}]}]},
        "annotation 1: no pairwise",
    ),
    _of(
        "hh_no_turn",
        {"chosen": "\n\nHuman: p\n\nAssistant: a", "rejected": "\n\nHuman: p\n\nAssistant: b"},
        {"chosen": "\n\nHuman: p", "rejected": "\n\nHuman: q"},
        "in common",
    ),
    _of(
        "many_votes",
        VOTES,
        {"votes": ["a"] * 20_000, "workers": [f"w{n}" for n in range(20_000)]},
        "found 20,000 votes on one pair, expected at most 1,000",
    ),
)
DAMAGED = (*_NOT_JSON, *_NO_ROW, *_FIELDS, *_FORMATS, *DAMAGED_FILES)


def write_all(folder: Path) -> None:
    """Writes every file into `damaged` and `sound` below the folder."""
    for kind, cases in (("damaged", DAMAGED), ("sound", SOUND)):
        target = folder / kind
        target.mkdir(parents=True, exist_ok=True)
        for case in cases:
            case.write(target / case.name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))

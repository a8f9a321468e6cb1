import gzip
import json
from pathlib import Path

import pytest

from preferences.reader import MAX_ROW_BYTES, MalformedDataError, read_rows, stream_rows
from preferences.schemas import JUDGMENTS, PREFERENCES, PROMPTS

ROW = {"prompt_id": "p1", "prompt": "Where is my parcel?"}


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(content: bytes | str, name: str = "x.jsonl") -> Path:
        path = Path(name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def errors_of(path, schema=PROMPTS):
    with pytest.raises(MalformedDataError) as caught:
        read_rows(path, schema)
    return caught.value


def test_rows_come_back_as_they_are_in_order(write):
    rows = [ROW, {"prompt_id": "p2", "prompt": "„Grüße“ 🙂 שלום"}]
    path = write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert read_rows(path, PROMPTS) == rows


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"\xef\xbb\xbf" + json.dumps(ROW).encode(),
        json.dumps(ROW).encode() + b"\r\n",
        b"  " + json.dumps(ROW).encode() + b"  \n\n",
        b'{"prompt_id": "p", "prompt": "\\ud83d\\ude42 \\u00e9"}',
        b'{"prompt": "x", "prompt_id": "p"}',
        json.dumps({"prompt_id": "p", "prompt": [{"role": "user", "content": "hi"}]}).encode(),
    ],
    ids=["empty", "blank", "bom", "crlf", "spaces", "escapes", "key order", "messages"],
)
def test_valid_oddities_are_accepted(write, content):
    assert len(read_rows(write(content), PROMPTS)) == (1 if content.strip() else 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"prompt_id": "p", "prompt": null}', 'field "prompt": expected text or messages'),
        (b'{"prompt_id": 3, "prompt": "x"}', 'field "prompt_id": expected text, got 3'),
        (b'{"prompt_id": true, "prompt": "x"}', 'field "prompt_id": expected text, got true'),
        (b'{"prompt_id": " ", "prompt": "x"}', 'field "prompt_id": expected text, got " "'),
        (b'{"prompt_id": "p"}', 'field "prompt": missing'),
        (b'{"prompt_id": "p", "prompt": "x", "promt": 1}', 'field "promt": unknown'),
        (b'{"prompt_id": "p", "prompt_id": "q", "prompt": "x"}', '"prompt_id": occurs twice'),
        (b'{"prompt_id": "p", "prompt": NaN}', "NaN is not a JSON number"),
        (b'{"prompt_id": "p", "prompt": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"prompt_id": "p", "prompt": 1e999}', "fits a 64-bit float"),
        (b'{"prompt_id": "p", "prompt": ' + b"1" * 5000 + b"}", "fewer digits"),
        (b'{"prompt_id": "p", "prompt": "a\\u0000b"}', 'field "prompt": contains a NUL'),
        (b'{"prompt_id": "p", "prompt": "a\\ud800b"}', "half a surrogate pair, U+D800"),
        (b'{"prompt_id": "p", "prompt": "a\x00b"}', "not JSON: Invalid control character"),
        (b'{"prompt_id": "p", "prompt": "caf\xe9"}', "not UTF-8: byte 0xe9 at 34"),
        (
            b'{"prompt_id": "p", "prompt": ' + b"[" * 20 + b"]" * 20 + b"}",
            "more than 16 levels deep",
        ),
        (b"[" * 100_000, "more than 16 levels deep"),
        (b'{"prompt_id": "p", "prompt": []}', "got an empty list"),
        (b'{"prompt_id": "p", "prompt": [{"role": "me", "content": ""}]}', 'role is "me"'),
        (b'{"prompt_id": "p", "prompt": [{"role": "user"}]}', "message 1: expected"),
        (b'{"prompt_id": "p", "prompt": "x"', "not JSON: Expecting"),
        (b"'prompt'", "not JSON: Expecting value"),
        (b'["p", "x"]', "expected an object, got a list"),
        (b"null", "expected an object, got null"),
        (b"\x00\x00", "not JSON"),
        (b"\xff\xfe{\x00", "not UTF-8: byte 0xff at 1"),
    ],
)
def test_each_defect_is_named_on_one_line_with_its_place(write, line, expected):
    good = json.dumps(ROW).encode()
    error = errors_of(write(good + b"\n" + line + b"\n" + good + b"\n"))
    assert error.total == 1
    assert str(error).startswith("x.jsonl:2: ")
    assert expected in str(error)
    assert "needs a name" not in str(error), "only of a list that begins the file"
    assert "\n" not in str(error)


def test_of_a_message_that_is_none_four_keys_are_shown(write):
    error = errors_of(write(json.dumps(ROW | {"prompt": [dict.fromkeys("abcde", 1)]}).encode()))
    assert str(error).endswith('got an object with "a", "b", "c", "d"')


@pytest.mark.parametrize("indent", [None, 1], ids=["in a line", "over lines"])
def test_a_json_list_called_lines_is_said_to_need_another_name(write, indent):
    error = errors_of(write(json.dumps([ROW, ROW], indent=indent).encode()))
    first, *others = str(error).splitlines()
    assert first.startswith("x.jsonl:1: ")
    assert first.endswith("; a file that is one JSON list needs a name that ends in .json")
    assert all("needs a name" not in other for other in others)


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16_is_said_to_be_one(write, order):
    text = ("\ufeff" + 3 * (json.dumps(ROW) + "\n")).encode(order)
    error = errors_of(write(text))
    assert str(error).endswith("x.jsonl: UTF-16, expected UTF-8")
    assert error.total == 1


def test_a_byte_order_mark_is_accepted_at_the_start_of_the_file_only(write):
    good = json.dumps(ROW).encode() + b"\n"
    assert "x.jsonl:2:" in str(errors_of(write(good + b"\xef\xbb\xbf" + good)))


def test_the_message_for_a_missing_text_is_the_documented_one(write):
    row = {
        "pair_id": "0" * 16, "prompt_id": "p", "prompt": "x", "chosen": None, "rejected": "b",
        "margin": 0, "weight": 1, "source": "", "round": "", "split": "train",
    }  # fmt: skip
    error = errors_of(write(json.dumps(row)), PREFERENCES)
    assert str(error) == 'x.jsonl:1: field "chosen": expected text, got null'


def test_numbers_and_choices_are_held_to_their_range(write):
    row = {
        "pair_id": "0" * 16, "prompt_id": "p", "prompt": "x", "chosen": "a", "rejected": "b",
        "margin": "0", "weight": -1, "source": "", "round": "", "split": "test",
    }  # fmt: skip
    error = errors_of(write(json.dumps(row)), PREFERENCES)
    assert error.errors == [
        'x.jsonl:1: field "margin": expected a number, got "0"',
        'x.jsonl:1: field "weight": expected at least 0, got -1',
        'x.jsonl:1: field "split": expected one of train, heldout, got "test"',
    ]


def test_true_is_no_number(write):
    row = {
        "pair_id": "0", "prompt_id": "p", "prompt": "x", "chosen": "a", "rejected": "b",
        "margin": True, "weight": 1, "source": "", "round": "", "split": "train",
    }  # fmt: skip
    assert "expected a number, got true" in str(errors_of(write(json.dumps(row)), PREFERENCES))


def test_a_row_over_the_limit_is_skipped_without_being_held_and_the_next_one_read(write):
    good = json.dumps(ROW).encode() + b"\n"
    long = b'{"prompt": "' + b"x" * (2 * MAX_ROW_BYTES) + b'"}\n'
    error = errors_of(write(good + long + b"{}\n"))
    assert error.errors[0] == "x.jsonl:2: row is over 4,194,304 bytes long"
    assert error.errors[1].startswith("x.jsonl:3: ")


def test_the_first_twenty_problems_come_with_the_total(write):
    error = errors_of(write(b"".join(b"%d\n" % number for number in range(45))))
    assert error.total == 45
    assert str(error).count("\n") == 20
    assert str(error).endswith("... and 25 more problems; 45 in all")


def test_what_many_rows_have_in_common_is_one_line_with_the_first_of_them_and_their_number(write):
    """Distinct problems stay distinct, of the same rows and of others."""
    rows = [{"prompt_id": f"p{n}", "prompt": "x", "topic": n} for n in range(5_500)]
    rows[2]["prompt"], rows[7]["prompt"], rows[9]["level"] = 1, 2, 3
    error = errors_of(write("".join(json.dumps(row) + "\n" for row in rows)))
    assert error.errors == [
        'x.jsonl:1: field "topic": unknown; prompts have prompt_id, prompt '
        "(the first of 5,500 such rows, then 2, 3, 4, ...)",
        'x.jsonl:3: field "prompt": expected text or messages, got 1',
        'x.jsonl:8: field "prompt": expected text or messages, got 2',
        'x.jsonl:10: field "level": unknown; prompts have prompt_id, prompt',
    ]
    assert error.total == 5_503
    assert str(error).splitlines() == error.errors, "nothing is left that is not shown"


def test_of_more_problems_than_are_shown_those_of_shown_lines_are_not_counted_as_left(write):
    rows = [{"prompt_id": "p", "prompt": n, "topic": "t"} for n in range(30)]
    error = errors_of(write("".join(json.dumps(row) + "\n" for row in rows)))
    # One line for `topic` in 30 rows and 19 for prompts, of which 11 are left.
    assert "(the first of 30 such rows, then " in error.errors[1]
    assert str(error).endswith("\n... and 11 more problems; 60 in all")


def test_a_missing_file_and_a_folder_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(errors_of(Path("no.jsonl"))) == "no.jsonl: no such file"
    (tmp_path / "folder").mkdir()
    assert str(errors_of(Path("folder"))) == "folder: is a folder, expected a file"


def test_gzip_is_read_and_damaged_gzip_is_an_error(write):
    packed = gzip.compress(json.dumps(ROW).encode() * 1)
    assert read_rows(write(packed, "x.jsonl.gz"), PROMPTS) == [ROW]
    assert "damaged gzip" in str(errors_of(write(packed[:-6], "y.jsonl.gz")))
    assert "damaged gzip" in str(errors_of(write(b"plain", "z.jsonl.gz")))


def test_control_characters_of_the_data_do_not_reach_the_terminal(write):
    error = errors_of(write(b'{"prompt_id": "p", "prompt": "x", "\\u001b[31mred\\n": 1}'))
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)


def test_streaming_yields_good_rows_with_their_place_and_fails_at_the_end(write):
    rows = stream_rows(write(json.dumps(ROW) + "\n[]\n" + json.dumps(ROW) + "\n"), PROMPTS)
    assert next(rows).where == "x.jsonl:1"
    assert next(rows).where == "x.jsonl:3"
    with pytest.raises(MalformedDataError):
        next(rows)


def test_judgments_take_their_optional_fields_and_no_others(write):
    row = {
        "judgment_id": "j", "pair_id": "p", "round": "r1", "annotator_id": "ann", "kind": "human",
        "annotator_version": "v", "choice": "a", "strength": 3, "shown_order": "BA", "revision": 1,
    }  # fmt: skip
    assert read_rows(write(json.dumps(row)), JUDGMENTS) == [row]
    more = row | {"latency_ms": 12, "reason": None, "criteria": {"honest": 1}, "strength": None}
    assert read_rows(write(json.dumps(more)), JUDGMENTS) == [more]
    assert '"mood": unknown' in str(errors_of(write(json.dumps(row | {"mood": 1})), JUDGMENTS))
    assert "1 to 4" in str(errors_of(write(json.dumps(row | {"strength": 5})), JUDGMENTS))

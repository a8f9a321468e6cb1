from dataclasses import replace

import pytest

from preferences.measures import Candidate, digest, measure
from preferences.normal_text import visible_characters
from preferences.reader import MalformedDataError
from preferences.records import Preference, Sourced
from preferences.rules import RULES
from preferences.tokens import TokenLimit
from tests.tiny import tokenizer


def broken(rule, *rows, evaluation=(), tokens=None):
    """Indexes of the (prompt, chosen, rejected[, split]) rows that break the rule."""
    candidates = [
        Candidate(
            Sourced(
                Preference(
                    pair_id="", prompt_id="", prompt=row[0], chosen=row[1], rejected=row[2],
                    split=row[3] if len(row) > 3 else "train", label=row[4] if len(row) > 4 else 1,
                ),
                "",
            ),
            fresh=True,
        )
        for row in rows
    ]  # fmt: skip
    near = {"near_duplicates", "near_leaks"}
    table = measure(candidates, evaluation, near=near, tokens=tokens).table
    (found,) = (each for each in RULES if each.name == rule)
    keeps = found.keeps(table[list(found.columns)])
    return [index for index, kept in enumerate(keeps) if not kept]


@pytest.mark.parametrize(
    ("response", "length"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("\u200b\u200b", 0),  # zero-width spaces
        ("\u0301", 0),  # a combining accent on nothing
        ("\u00a0\u3000", 0),  # no-break and ideographic space
        ("\x07", 0),
        ("\u2800\u2800", 0),  # empty Braille
        ("\u3164", 0),  # Hangul fillers: letters to Python
        ("\u115f\u1160 \uffa0", 0),
        ("\ufffc", 0),  # where an object was
        ("\U0001d159", 0),  # a note without a head
        ("\U000e0041", 0),  # a tag
        ("\u3164a", 2),
        ("⠓⠊", 2),
        (".", 1),
        (" ab ", 2),
        ("🙂", 1),
        ("ש", 1),
        ("\u200b a", 3),
    ],
)
def test_a_response_is_as_long_as_what_can_be_seen_of_it(response, length):
    assert visible_characters(response) == length


def test_blank_responses_are_found_on_both_sides():
    rows = [("p", "a", "b"), ("p", " ", "b"), ("p", "a", ""), ("p", "\u200b", "b")]
    assert broken("blank_responses", *rows) == [1, 2, 3]


COPIES = {
    "decomposed": ("Là-bas, l\u2019été", "La\u0300-bas, l\u2019e\u0301te\u0301"),
    "full-width": ("It is 20 days!", "\uff29t is \uff12\uff10 days\uff01"),
    "zero-width": ("It is 20 days", "I\u200bt is 2\u20600 da\ufeffys\u200d"),
    "direction": ("It is 20 days", "\u202aIt is\u202c \u206820\u2069 days"),
    "soft hyphens": ("It is beautiful", "It is beau\u00adti\u00adful"),
    "tags": ("It is 20 days", "It\U000e0049\U000e0074 is 20 days"),
    "selectors": ("I \u2764 it", "I \u2764\ufe0f it"),
    "blanks": ("It is 20 days", "It\u3164is\u280020\u00a0days\u2800"),
    "ligatures": ("the office", "the o\ufb03ce"),
    "controls": ("It is 20 days", "It\x08 is 20\x1b days"),
    "signs": ("the TM of it", "the \u2122 of it"),
    "cut in two": ("caf\u00e9", "cafe\u200b\u0301"),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), COPIES.values(), ids=COPIES)
def test_copies_that_look_the_same_are_the_same(one, other):
    assert broken("identical_responses", ("p", one, other), ("p", one, "b")) == [0]
    rows = [("p", one, "b"), ("p", other, "b"), ("q", one, "b"), ("q", "b", other)]
    assert broken("duplicates", *rows) == [1]
    assert broken("contradictions", *rows) == [2, 3]
    question = f"{LONG} {one}"
    sides = [(question, "a", "b"), (question.replace(one, other), "a", "c", "heldout")]
    assert broken("split_leaks", *sides) == [0, 1]
    assert broken("near_duplicates", (one, "a", "b"), (other, "a", "b")) == [1]


def test_flags_that_differ_in_their_tags_only_differ():
    england, wales = (
        "\U0001f3f4" + "".join(chr(0xE0000 + ord(sign)) for sign in code) + "\U000e007f"
        for code in ("gbeng", "gbwls")
    )
    assert broken("identical_responses", ("p", england, wales), ("p", england, england)) == [1]


def test_responses_that_differ_only_in_case_and_white_space_are_identical():
    rows = [
        ("p", "Yes, sir", "yes,\n  SIR "),
        ("p", "a", "a"),
        ("p", "a", "a."),
        ("p", "a b", "ab"),
    ]
    assert broken("identical_responses", *rows) == [0, 1]


def test_all_rows_of_a_contradiction_are_found_and_nothing_else():
    rows = [
        ("p", "a", "b"),
        ("p", "B", " a"),
        ("q", "b", "a"),
        ("p", "a", "c"),
        ("p", "a", "b"),
        ("p", "x", "x"),
    ]
    assert broken("contradictions", *rows) == [0, 1, 4]


def test_a_tie_neither_contradicts_nor_closes_a_circle():
    rows = [
        ("p", "a", "b"),
        ("p", "b", "a", "train", 0.5),
        ("q", "a", "b"),
        ("q", "b", "c"),
        ("q", "c", "a", "train", 0.5),
    ]
    assert broken("contradictions", *rows) == []
    assert broken("cycles", *rows) == []


def test_all_but_the_first_of_the_same_pair_and_label_are_duplicates():
    rows = [("p", "a", "b"), ("P ", "a", "B"), ("p", "b", "a"), ("q", "a", "b"), ("p", "a", "b")]
    assert broken("duplicates", *rows) == [1, 4]


def test_another_label_makes_no_duplicate_and_ties_have_no_order():
    rows = [
        ("p", "a", "b"),
        ("p", "a", "b", "train", 0.5),
        ("p", "b", "a", "train", 0.5),  # the tie, swapped
        ("p", "a", "b", "train", 0.9),
        ("p", "a", "b", "train", 0.9),
        ("p", "a", "c", "train", 0.5),
    ]
    assert broken("duplicates", *rows) == [2, 4]


def test_a_prompt_on_both_sides_is_a_leak():
    rows = [
        ("p", "a", "b"),
        ("P", "a", "c", "heldout"),
        ("q", "a", "b"),
        ("r", "a", "b", "heldout"),
    ]
    assert broken("split_leaks", *rows) == [0, 1]


def test_an_evaluation_prompt_may_be_held_out_but_not_trained_on():
    rows = [("p", "a", "b"), ("p", "a", "b", "heldout"), ("q", "a", "b")]
    assert broken("evaluation_leaks", *rows, evaluation=[" P"]) == [0]


def test_message_prompts_are_distinguished_by_their_content():
    one, other = ([{"role": "user", "content": text}] for text in ("hi", "bye"))
    assert broken("duplicates", (one, "a", "b"), (other, "a", "b"), (one, "a", "b")) == [2]


def test_digests_are_the_same_in_every_process():
    # blake2b-64 of nothing, from RFC 7693's reference code: e4a6a0577479b2b4.
    assert digest("") == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "big", signed=True)


def test_responses_preferred_in_a_circle_are_found_and_what_leads_there_is_not():
    rows = [
        ("p", "a", "b"),
        ("p", "b", "c"),
        ("p", "c", "a"),
        ("p", "x", "a"),  # leads into the circle
        ("p", "c", "y"),  # leads out of it
        ("q", "c", "b"),  # another prompt
        ("p", "d", "e"),
        ("p", "e", "f"),
        ("p", "f", "g"),
        ("p", "g", "d"),
        ("p", "y", "d"),  # from one circle to the other
    ]
    assert broken("cycles", *rows) == [0, 1, 2, 6, 7, 8, 9]


def test_a_contradiction_alone_is_no_circle():
    assert broken("cycles", ("p", "a", "b"), ("p", "b", "a"), ("p", "x", "x")) == []


@pytest.mark.parametrize(
    ("rule", "response"),
    [
        ("extra_turns", "Sure.\n\nHuman: thanks"),
        ("damaged_text", "it\u00e2\u20ac\u2122s"),
        ("html_remains", "one<br/>two"),
        ("personal_data", "mail me@example.org"),
        ("personal_data", "mail m\u200be@exam\u00adple.org"),
        ("extra_turns", "Sure.\n\nHu\u200bman: thanks"),
        ("extra_turns", "Sure.\n\nHum\u202ean\u202c: thanks"),
        ("extra_turns", "Sure.\n\n\ufeffHuman\u00ad: thanks"),
        ("extra_turns", "Sure.\n\n\uff28\uff55\uff4d\uff41\uff4e\uff1a thanks"),
        ("extra_turns", "ok<|im\u200b_start|>user"),
        ("html_remains", "one<b\u200br/>two"),
    ],
)
def test_defects_of_either_response_are_found(rule, response):
    assert broken(rule, ("p", "a", "b"), ("p", response, "b"), ("p", "a", response)) == [1, 2]


def test_html_that_was_asked_for_is_no_remain():
    tags = "<p>Hello</p>"
    rows = [("Write HTML that says hello", tags, "b"), ("Say hello", tags, "b")]
    assert broken("html_remains", *rows) == [1]


def test_html_may_have_been_asked_for_earlier_in_the_conversation():
    def again(first):
        says = (("user", first), ("assistant", "Sure."), ("user", "And shorter?"))
        return [{"role": role, "content": text} for role, text in says]

    rows = [(again(text), "<p>Hi</p>", "b") for text in ("Write HTML that says hi", "Say hi")]
    assert broken("html_remains", *rows) == [1]


LONG = "the parcel that left our house on monday has been waiting at the station for days and days"


def test_a_training_prompt_nearly_held_out_or_evaluated_on_is_a_near_leak():
    near, far = LONG.replace("days and days", "days and weeks"), LONG[::-1]
    rows = [
        (LONG, "a", "b"),
        (near, "a", "c", "heldout"),
        (far, "a", "b"),
        (far, "a", "c", "heldout"),  # exactly the same: another rule's
    ]
    assert broken("near_leaks", *rows) == [0]
    assert broken("near_leaks", rows[0], rows[2], evaluation=[near]) == [0]
    assert broken("near_leaks", rows[0], evaluation=[LONG]) == []
    # Near copies are found beside an exact one, wherever that stands.
    assert broken("near_leaks", rows[0], (near, "a", "b"), evaluation=[near]) == [0]
    assert broken("near_leaks", (near, "a", "b"), rows[0], rows[2], evaluation=[near]) == [1]


def test_prompts_that_only_begin_alike_are_no_near_leak():
    words = [f"word{n}" for n in range(300)]
    rows = [(f"Write one line with the word {word}", "a", "b") for word in words]
    sides = [(*row, "heldout" if n % 2 else "train") for n, row in enumerate(rows)]
    # Four of six shingles in common: 0.67, whatever an estimate says.
    assert broken("near_leaks", *sides) == []


def test_near_duplicates_are_found_after_the_first():
    rows = [(LONG, LONG + " one", LONG[::-1]), (LONG, LONG + " two", LONG[::-1]), ("p", "a", "b")]
    assert broken("near_duplicates", *rows) == [1]


ENGLISH = (
    "The parcel is on its way and it will be there when you come home, which is what you want."
)
GERMAN = "Das Paket ist auf dem Weg und wird da sein, wenn sie nach Hause kommen, sagt der Bote."


def test_a_response_in_another_language_or_script_is_found():
    rows = [
        (ENGLISH, ENGLISH + " Yes.", ENGLISH),
        (ENGLISH, ENGLISH, GERMAN),
        (ENGLISH, "Посылка уже в пути и скоро будет", ENGLISH),
        (ENGLISH, "42", "paz"),  # too short to tell
        ("42?", GERMAN, ENGLISH),  # one of them must be
        ("42?", GERMAN, GERMAN + " Ja."),
        ("42?", "42", ENGLISH),
        (ENGLISH, ENGLISH, "| ET | 4 |\n" * 9 + "| UN | 1 |\n" * 3 + "| EST | 2 |\n" * 2),
    ]
    assert broken("other_language", *rows) == [1, 2, 4]


@pytest.fixture
def tokens(tmp_path):
    def limit(count):
        tokenizer().save_pretrained(tmp_path)
        return TokenLimit(tmp_path, count)

    return limit


def test_what_the_model_cannot_tell_apart_is_identical_to_it(tokens):
    # Bytes that no merge joins are a token each: 4 and a space of prompt, 6 of response.
    rows = [("qqqq", "xxxxxA", "xxxxxB"), ("qqqq", "Axxxxx", "Bxxxxx")]
    assert broken("identical_tokens", *rows, tokens=tokens(10)) == [0]
    assert broken("identical_tokens", *rows, tokens=tokens(12)) == []
    assert broken("identical_tokens", *rows) == []


def test_the_longer_side_counts_with_its_end_token(tokens):
    rows = [("qqqq", "xxxxxx", "x"), ("qqqq", "x", "xxxxxx"), ("qqqq", "x", "xxxxx")]
    assert broken("token_limit", *rows, tokens=tokens(12)) == [0, 1]


def test_a_side_that_was_cut_has_no_end_token_to_count(tokens):
    limit = tokens(12)
    row = {"prompt": "qqqq", "chosen": "xxxxxx", "rejected": "x"}
    whole = Preference(pair_id="", prompt_id="", **row)
    assert limit.view(whole).tokens == 4 + 1 + 6 + 1 + 1
    assert limit.view(replace(whole, rejected_finished=False)).tokens == 4 + 1 + 6 + 1 + 1
    assert limit.view(replace(whole, chosen_finished=False)).tokens == 4 + 1 + 6 + 1


def test_of_messages_what_is_said_counts_and_not_how_it_is_written_down(tokens):
    """As JSON the two turns would be some seventy tokens more."""
    said = [{"role": "system", "content": "qq"}, {"role": "user", "content": "qqqq"}]
    pair = Preference(pair_id="", prompt_id="", prompt=said, chosen="xxxxxA", rejected="xxxxxB")
    assert tokens(12).view(pair).tokens == 2 + 1 + 4 + 1 + 6 + 1 + 1
    assert tokens(14).view(pair).same
    assert not tokens(15).view(pair).same


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(MalformedDataError, match=r"tokenizer\.json: no tokenizer"):
        TokenLimit(tmp_path, 10)

"""What `convert` writes and reads back again, and what it says it could not carry over."""

import json

import pytest

from preferences.__main__ import main
from preferences.formats.reading import open_source
from preferences.formats.writing import OUT_FORMATS, Unsettled, write_items
from preferences.records import Preference, Sourced, pair_id, prompt_text, text_hash

MESSAGES = [{"role": "user", "content": "Hé, où?"}]
TURNS = "\n\nHuman: Where?\n\nAssistant:"


def preference(prompt, chosen, rejected, **more):
    return Preference(
        pair_id=pair_id(prompt, chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected,
        **{"prompt_id": text_hash(prompt_text(prompt))} | more,
    )  # fmt: skip


TIE = preference("tie", "x", "y", label=0.5)
ODD = [
    preference("plain", "good", "bad"),
    TIE,
    preference("tie with all", "y", "x", label=0.5, margin=0.25, weight=2.0, source="model"),
    preference("soft", "good", "bad", label=0.75, margin=1 / 3),
    preference("no margin", "good", "bad", margin=0.0, source="human", round="r2"),
    preference("one prompt", "first", "second", margin=0.5),
    preference("one prompt", "third", "fourth", weight=0.5, split="heldout"),
    preference("chain", "a", "b"),
    preference("chain", "b", "c", margin=1.0, annotator_version="v1"),
    preference("chain", "c", "a", prompt_id="chosen by us"),
    preference("„Ünïcode“ 🙂\u2028", "null", "12"),
    preference("line\r\nends\r", "\r", " \n"),
    preference("cut", "good but", "bad", chosen_finished=False),
    preference("both cut", "bet", "wors", chosen_finished=False, rejected_finished=False),
    preference("blank", "", " "),
    preference("same", "alike", "alike"),
    preference(TURNS, " there", " here"),
    preference(MESSAGES, "Là.", "Nowhere."),
]
TABLES = ["x.jsonl", "x.json", "x.csv", "x.parquet", "x.jsonl.gz"]
CASES = [
    (to, table)
    for to in OUT_FORMATS
    for table in (["x"] if to == "judgments" else TABLES)
    if (to, table) != ("label_studio", "x.csv")
]


def write_own(path, rows):
    write_items(path, [Sourced(row, "") for row in rows], "preferences")
    return path


def convert(path, out, to, capsys):
    """The notes that the command prints, by name."""
    assert main(["convert", str(path), str(out), "--to", to]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    notes = said.rstrip("\n").removeprefix(f"{out}: ").split("; ")[1:]
    return dict(note.split(": ", 1) for note in notes)


def seen(row):
    """What must never change; of a tie, `chosen` is only the first."""
    return prompt_text(row.prompt), row.chosen, row.rejected, row.is_tie


@pytest.mark.parametrize(("to", "table"), CASES)
def test_every_pair_that_no_note_counts_comes_back_from_every_kind_of_file(
    tmp_path, capsys, to, table
):
    rows = ODD
    if "parquet" in table and to not in ("trl_messages", "trl_implicit", "hh"):
        rows = ODD[:-1]  # A Parquet column has one type.
    out = tmp_path / table
    notes = convert(write_own(tmp_path / "own.jsonl", rows), out, to, capsys)
    again = convert(out, tmp_path / "back.jsonl", "preferences", capsys)
    back = [item.preference for item in open_source(tmp_path / "back.jsonl")]

    expected = rows
    if to in ("hh", "unpaired"):
        expected = [row for row in rows if not row.is_tie]
        assert notes.pop("ties left out") == "2"
    assert len(back) == len(expected) + int(notes.get("additional pairs when read back", 0))
    if reformed := int(notes.pop("prompts written as turns", 0)):
        kept = [row for row in expected if row.prompt == TURNS]
        assert reformed == len(expected) - len(kept)
        expected = kept
    if reformed := int(notes.pop("prompts written as messages", 0)):
        kept = [row for row in expected if row.prompt == MESSAGES]
        assert reformed == len(expected) - len(kept)
        expected = kept
    assert {seen(row) for row in expected} <= {seen(row) for row in back}
    assert not again.keys() & {"ties left out", "skipped left out"}

    lost = set(notes.get(f"not in {to}", "").split(", "))
    # The worker of a vote has the name of the source.
    lost |= {"source"} if to in ("votes", "label_studio") else set()
    found = {seen(row): row for row in back}
    usual = preference("", "", "")
    for row in expected:
        for name in (
            *("chosen_finished", "rejected_finished"),
            *("margin", "weight", "source", "round", "split", "label", "annotator_version"),
        ):
            value = getattr(row, name)
            if name not in lost and value != getattr(usual, name):
                assert getattr(found[seen(row)], name) == value, (row, name)
        if "prompt_id" not in lost:
            assert found[seen(row)].prompt_id == row.prompt_id


def test_a_conversion_within_our_own_format_loses_nothing_and_says_nothing(tmp_path, capsys):
    path = write_own(tmp_path / "own.jsonl", ODD)
    assert convert(path, tmp_path / "x.json.gz", "preferences", capsys) == {}
    assert convert(tmp_path / "x.json.gz", tmp_path / "y.jsonl", "preferences", capsys) == {}
    assert (tmp_path / "y.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("to", "lost"),
    [
        ("hh", "annotator_version, label, margin, rejected_finished, round, source, split, weight"),
        (
            "unpaired",
            "annotator_version, label, margin, rejected_finished, round, source, split, weight",
        ),
        ("scored", "annotator_version, label, rejected_finished, source, split, weight"),
        ("votes", "annotator_version, label, margin, split, weight"),
        ("judgments", "label, margin, split, weight"),
        ("trl", None),
    ],
)
def test_fields_that_a_format_has_no_place_for_are_named(tmp_path, capsys, to, lost):
    row = preference(
        TURNS, " a", " b", margin=0.5, weight=2.0, source="human", round="r1", split="heldout",
        label=0.75, annotator_version="v1", rejected_finished=False,
    )  # fmt: skip
    out = tmp_path / ("out" if to == "judgments" else "out.jsonl")
    path = write_own(tmp_path / "own.jsonl", [row])
    assert convert(path, out, to, capsys) == ({f"not in {to}": lost} if lost else {})


def test_columns_that_were_not_read_are_named(tmp_path, capsys):
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "mood": 1, "id": 7}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    notes = convert(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "preferences", capsys)
    assert notes == {"columns not read": "'id', 'mood'"}


def test_the_names_that_reading_gives_to_what_nobody_signed_are_no_loss(tmp_path, capsys):
    rows = [{"prompt": "p", "responses": ["a", "b"], "scores": [1, 1]},
            {"prompt": "q", "responses": ["a", "b"], "scores": [2, 1]}]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert convert(tmp_path / "x.jsonl", tmp_path / "y.jsonl", "scored", capsys) == {}
    assert len(list(open_source(tmp_path / "y.jsonl"))) == 2


def test_pairs_that_unpaired_completions_add_are_counted(tmp_path, capsys):
    rows = [preference("p", "a", "b"), preference("p", "c", "d"), preference("p", "c", "d")]
    path = write_own(tmp_path / "own.jsonl", rows)
    notes = convert(path, tmp_path / "y.jsonl", "unpaired", capsys)
    assert notes == {"repeated pairs merged": "1", "additional pairs when read back": "2"}
    assert len(list(open_source(tmp_path / "y.jsonl"))) == 4


def test_opposite_pairs_are_one_comparison_and_counted(tmp_path, capsys):
    path = write_own(tmp_path / "own.jsonl", [preference("p", *pair) for pair in ("xy", "yx")])
    notes = convert(path, tmp_path / "out", "judgments", capsys)
    assert notes == {"repeated pairs merged": "1"}
    (settled,) = Unsettled().settle(open_source(tmp_path / "out"), keep_ties=True)
    assert settled.preference.is_tie


def test_ties_are_counted_where_others_would_read_a_winner(tmp_path, capsys):
    path = write_own(tmp_path / "own.jsonl", [TIE])
    notes = convert(path, tmp_path / "y.jsonl", "trl", capsys)
    assert notes == {"ties marked only by their label": "1"}


def test_what_stands_beside_votes_is_named_when_it_is_lost(tmp_path, capsys):
    row = {"prompt": "p", "response_a": "x", "response_b": "y", "votes": ["a", "a"],
           "workers": ["w1", "w2"]}  # fmt: skip
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    assert convert(tmp_path / "x.jsonl", tmp_path / "j", "judgments", capsys) == {}
    judgments = tmp_path / "j" / "judgments.jsonl"
    orders = [json.loads(line)["shown_order"] for line in judgments.read_text().splitlines()]
    assert orders == [None, None], "the votes do not say it"
    said = '"shown_order":"BA","reason":"r"'
    text = judgments.read_text().replace('"shown_order":null', said)
    judgments.write_text(text.replace('"kind":"import"', '"kind":"human"'))
    assert convert(tmp_path / "j", tmp_path / "v.jsonl", "votes", capsys) == {
        "not in votes": "kind, reason, shown_order",
    }
    assert convert(tmp_path / "j", tmp_path / "again", "judgments", capsys) == {}
    assert (tmp_path / "again" / "judgments.jsonl").read_text().count('"reason":"r"') == 2
    assert convert(tmp_path / "j", tmp_path / "t.jsonl", "trl", capsys) == {
        "not in trl": "reason, votes, workers",
    }


def test_conversations_that_stay_in_one_message_are_counted(tmp_path, capsys):
    twice = "\n\nHuman: One\n\nHuman: Two\n\nAssistant:"
    rows = [preference(twice, " a", " b"), preference(TURNS, " a", " b"), preference("p", "a", "b")]
    path = write_own(tmp_path / "in.jsonl", rows)
    notes = convert(path, tmp_path / "out.jsonl", "trl_messages", capsys)
    assert notes["prompts written as messages"] == "3"
    assert notes["conversations left in one message"] == "1"

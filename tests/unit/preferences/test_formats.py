import json
from pathlib import Path

import pytest

from preferences.formats.files import read_records, write_records
from preferences.formats.reading import Source, detect, open_source
from preferences.formats.writing import write_items
from preferences.judging import judge
from preferences.reader import MalformedDataError
from preferences.records import Sourced, Voted
from preferences.splitting import asked
from tasks.own_data.rows import own_prompts
from tests.pair_files import CONTAINERS, MESSAGES, PREFERENCES, VOTES, preference, read, write


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_pairs_come_back_from_every_kind_of_file(tmp_path, container, to):
    path = tmp_path / container
    rows = PREFERENCES
    if "parquet" in container:
        # A Parquet column has one type: prompts are all text, or all messages.
        rows = [each for each in PREFERENCES if isinstance(each.prompt, str)]
        write(tmp_path / f"m.{container}", PREFERENCES[-1:], to)
        assert read(tmp_path / f"m.{container}") == PREFERENCES[-1:]
    write(path, rows, to)
    assert read(path) == rows


def test_message_pairs_come_back_from_both_forms_of_trl(tmp_path):
    rows = [preference(MESSAGES, "Là.", "Nowhere."), preference(MESSAGES[1:], "a", "b")]
    for to in ("trl_messages", "trl_implicit"):
        write(tmp_path / f"{to}.jsonl", rows, to)
        assert read(tmp_path / f"{to}.jsonl") == rows
    row = json.loads((tmp_path / "trl_implicit.jsonl").read_text().splitlines()[1])
    assert row["chosen"] == [*MESSAGES[1:], {"role": "assistant", "content": "a"}]
    assert "prompt" not in row


@pytest.mark.parametrize("before", [MESSAGES, MESSAGES[-1:]], ids=["several", "one"])
def test_a_prompt_of_messages_may_be_repeated_in_both_conversations(tmp_path, before):
    sides = {"chosen": "Là.", "rejected": "Nowhere."}
    row = {"prompt": before}
    for side, said in sides.items():
        row[side] = [*before, {"role": "assistant", "content": said}]
    write_records(tmp_path / "x.jsonl", [row])
    plain = {"source": "", "round": "", "margin": 0.0}
    assert read(tmp_path / "x.jsonl") == [preference(before, *sides.values(), **plain)]


def test_the_prompt_of_implicit_texts_is_what_both_begin_with(tmp_path):
    row = {"chosen": "The sky is blue.", "rejected": "The sky is bland."}
    write_records(tmp_path / "x.jsonl", [row])
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen, found.rejected) == ("The sky is", " blue.", " bland.")


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [("天空是蓝色的。", "天空是绿色的。"), ("Yes.", "No."), ("Yesterday", "Yes")],
)
def test_implicit_texts_without_a_common_word_have_no_prompt(tmp_path, chosen, rejected):
    write_records(tmp_path / "x.jsonl", [{"chosen": chosen, "rejected": rejected}])
    with pytest.raises(MalformedDataError, match=r'x\.jsonl:1: .*: expected a field "prompt"$'):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("end", ["", " ", "\n"])
def test_a_transcript_is_written_to_hh_as_it_is(tmp_path, end):
    prompt = f"\n\nHuman: Hi\n\nAssistant:{end}"
    write(tmp_path / "x.jsonl", [preference(prompt, "Hello.", "Go.")], "hh")
    row = json.loads((tmp_path / "x.jsonl").read_text())
    assert row == {"chosen": f"{prompt}Hello.", "rejected": f"{prompt}Go."}


def test_transcripts_of_hh_come_back_and_split_at_the_last_common_turn(tmp_path):
    shared = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Butterflies?\n\nAssistant:"
    row = {"chosen": shared + " In Oregon.", "rejected": shared + " In the zoo.\n\nHuman: No"}
    write_records(tmp_path / "x.jsonl", [row])
    assert detect(tmp_path / "x.jsonl") == "hh"
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen) == (shared, " In Oregon.")
    write(tmp_path / "y.jsonl", [found], "hh")
    assert (tmp_path / "y.jsonl").read_text() == (tmp_path / "x.jsonl").read_text()


def test_texts_that_only_begin_like_transcripts_are_none(tmp_path):
    """About the word, and without a turn of an assistant."""
    row = {"chosen": "Human: a noun.", "rejected": "Human: a verb."}
    write_records(tmp_path / "x.jsonl", [row])
    assert detect(tmp_path / "x.jsonl") == "trl"


@pytest.mark.parametrize("start", ["", "\n", " "])
def test_transcripts_whose_ends_were_stripped_are_split_at_the_last_common_turn(tmp_path, start):
    """As pandas or a spreadsheet leaves them; the words in common are no part of the prompt."""
    shared = f"{start}Human: Hi\n\nAssistant: Hello.\n\nHuman: Butterflies?\n\nAssistant:"
    row = {"chosen": f"{shared} I saw some.", "rejected": f"{shared} I saw none."}
    write_records(tmp_path / "x.jsonl", [row])
    assert detect(tmp_path / "x.jsonl") == "hh"
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.prompt, found.chosen, found.rejected) == (shared, " I saw some.", " I saw none.")


def test_transcripts_of_hh_become_messages_that_write_the_same_transcripts(tmp_path):
    shared = (
        "\n\nHuman: Hi\n\nAssistant: Hello.\n\nBob says hi.\n\nHuman: Butterflies?\n\nAssistant:"
    )
    row = {"chosen": shared + " In Oregon.", "rejected": shared + " In the zoo."}
    write_records(tmp_path / "x.jsonl", [row])
    write(tmp_path / "y.jsonl", read(tmp_path / "x.jsonl"), "trl_messages")
    (found,) = read(tmp_path / "y.jsonl")
    assert found.prompt == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.\n\nBob says hi."},
        {"role": "user", "content": "Butterflies?"},
    ]
    assert (found.chosen, found.rejected) == ("In Oregon.", "In the zoo.")
    write(tmp_path / "z.jsonl", [found], "hh")
    assert (tmp_path / "z.jsonl").read_text() == (tmp_path / "x.jsonl").read_text()


@pytest.mark.parametrize("to", ["trl_messages", "trl_implicit"])
@pytest.mark.parametrize("prompt", ["Why?", "\n\nHuman: Why?\n\nAssistant:"])
def test_prompts_that_become_messages_get_the_id_that_a_file_of_prompts_gives_them(
    tmp_path, to, prompt
):
    named = preference(prompt, " a", " b", prompt_id="mine")
    write(tmp_path / "x.jsonl", [preference(prompt, " a", " b"), named], to)
    found = [each.prompt_id for each in read(tmp_path / "x.jsonl")]
    write_records(tmp_path / "p.jsonl", [{"prompt": [{"role": "user", "content": "Why?"}]}])
    (alone,) = own_prompts(tmp_path / "p.jsonl")
    assert found == [alone["prompt_id"], "mine"]


@pytest.mark.parametrize(
    "prompt",
    [
        "What does Human: mean?",
        "Human: is a species?",
        "\n\nHuman: No assistant",
        "\n\nAssistant: I begin\n\nHuman: Why?\n\nAssistant:",
        "\n\nHuman: One\n\nHuman: Two\n\nAssistant:",
        "\n\nHuman:\n\nAssistant:",
        "\n\nHuman: Hi\n\nAssistant:\n\nHuman: There?\n\nAssistant:",
        "Be kind.\n\nHuman: Hi\n\nAssistant:",
        "\n\nHuman: Hi\n\nAssistant: I have begun",
    ],
)
def test_what_is_no_conversation_in_turns_stays_one_message(tmp_path, prompt):
    write(tmp_path / "x.jsonl", [preference(prompt, " a", " b")], "trl_messages")
    row = json.loads((tmp_path / "x.jsonl").read_text())
    assert row["prompt"] == [{"role": "user", "content": prompt}]
    assert row["chosen"] == [{"role": "assistant", "content": " a"}]


@pytest.mark.parametrize(
    "prompt",
    [
        "Human: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant:",
        "\nHuman:Hi\n\nAssistant:  Hello.\n\nHuman: Bye \n\nAssistant: ",
        "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye",
    ],
)
def test_a_conversation_is_split_however_its_blanks_are_and_keeps_its_side(tmp_path, prompt):
    write(tmp_path / "x.jsonl", [preference(prompt, "yes", " yes")], "trl_messages")
    (found,) = read(tmp_path / "x.jsonl")
    said = [(message["role"], message["content"]) for message in found.prompt]
    assert said == [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    assert (found.chosen, found.rejected) == ("yes", " yes"), "else they would be the same"
    assert asked(found.prompt) == asked(prompt)


def test_scored_responses_give_all_pairs_with_their_margins_and_equal_ones_a_tie(tmp_path):
    row = {"prompt": "p", "responses": ["a", "b", "c"], "scores": [1, 3.5, 1]}
    write_records(tmp_path / "x.jsonl", [row])
    items = list(open_source(tmp_path / "x.jsonl"))
    pairs = [item.preference for item in items if isinstance(item, Sourced)]
    assert [(each.chosen, each.rejected, each.margin) for each in pairs] == [
        ("b", "a", 2.5),
        ("b", "c", 2.5),
    ]
    (tie,) = [item for item in items if isinstance(item, Voted)]
    assert judge([tie.comparison], tie.judgments, weights={}).ties == 1


def test_ranks_prefer_the_lower_number(tmp_path):
    write_records(tmp_path / "x.jsonl", [{"prompt": "p", "responses": ["a", "b"], "ranks": [2, 1]}])
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.chosen, found.margin) == ("b", 0.0)


def test_scored_pairs_come_back(tmp_path):
    rows = [preference("p", "a", "b", source="", margin=0.5)]
    write(tmp_path / "x.jsonl", rows, "scored")
    assert read(tmp_path / "x.jsonl") == rows


@pytest.mark.parametrize("to", ["votes", "label_studio", "judgments"])
def test_votes_come_back_with_their_workers(tmp_path, to):
    write_records(tmp_path / "in.jsonl", [VOTES])
    items = list(open_source(tmp_path / "in.jsonl"))
    out = tmp_path / ("out" if to == "judgments" else "out.json")
    write_items(out, items, to)
    assert detect(out) == to
    (back,) = open_source(out)
    (first,) = items
    assert isinstance(back, Voted)
    assert isinstance(first, Voted)
    assert [(each.annotator_id, each.choice) for each in back.judgments] == list(
        zip(VOTES["workers"], VOTES["votes"], strict=True)
    )
    assert back.comparison == first.comparison


def test_unpaired_completions_come_back_as_pairs_and_lone_ones_are_counted(tmp_path):
    rows = [preference("p", "good", "bad"), preference("q", "yes", "no")]
    bare = [preference(each.prompt, each.chosen, each.rejected, source="", round="", margin=0.0)
            for each in rows]  # fmt: skip
    write(tmp_path / "x.csv", rows, "unpaired")
    assert read(tmp_path / "x.csv") == bare
    write(tmp_path / "x.jsonl", rows, "unpaired")
    lines = [*read_records(tmp_path / "x.jsonl")]
    extra = {"prompt": "r", "completion": "alone", "label": True, "prompt_id": "r"}
    write_records(tmp_path / "y.jsonl", [*(line.row for line in lines), extra])
    source = open_source(tmp_path / "y.jsonl")
    assert len(list(source)) == 2
    assert source.alone == 1


def test_completions_may_be_messages_of_the_assistant(tmp_path):
    """TRL's conversational form, as in KTO's sets."""
    rows = [
        {"prompt": MESSAGES, "completion": [{"role": "assistant", "content": said}], "label": good}
        for said, good in (("Here.", True), ("No.", False))
    ]
    for container in ("x.jsonl", "x.parquet", "x.csv"):
        write_records(tmp_path / container, rows)
        (found,) = read(tmp_path / container)
        assert (found.prompt, found.chosen, found.rejected) == (MESSAGES, "Here.", "No.")


def test_a_completion_of_several_messages_is_refused(tmp_path):
    rows = [{"prompt": "p", "completion": MESSAGES, "label": True}]
    write_records(tmp_path / "x.jsonl", rows)
    with pytest.raises(MalformedDataError, match=r"x\.jsonl:1: .*a single assistant message"):
        read(tmp_path / "x.jsonl")


def test_a_response_of_two_pairs_is_one_completion(tmp_path):
    write(tmp_path / "x.jsonl", [preference("p", "a", "b"), preference("p", "a", "c")], "unpaired")
    rows = [line.row for line in read_records(tmp_path / "x.jsonl")]
    assert [(row["completion"], row["label"]) for row in rows] == [
        ("a", True),
        ("b", False),
        ("c", False),
    ]


REAL = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.parametrize("name", ["hh_helpful", "ukp_arguments", "polite_instructions"])
def test_real_data_come_back_from_every_format_for_pairs(tmp_path, name):
    path = REAL / name / "preferences.jsonl"
    if not path.exists():
        pytest.skip(f"the real data are not beside the project ({path})")
    source = Source(path, "trl")
    rows = list(source)[::8]
    assert source.left_out == {"id", "meta"}
    texts = [(each.preference.prompt, each.preference.chosen) for each in rows]
    outs = [("trl", "x.csv"), ("trl", "x.parquet"), ("preferences", "x.jsonl.gz"),
            ("scored", "s.json"), ("votes", "v.jsonl"), ("label_studio", "l.json")]  # fmt: skip
    if name == "hh_helpful":
        outs.append(("hh", "h.jsonl"))
    for to, file in outs:
        write_items(tmp_path / file, rows, to)
        back = [
            each.preference if isinstance(each, Sourced)
            else judge([each.comparison], each.judgments, weights={}).rows[0].preference
            for each in open_source(tmp_path / file)
        ]  # fmt: skip
        assert [(each.prompt, each.chosen) for each in back] == texts, to


def test_one_name_in_two_spellings_of_unicode_is_one_worker(tmp_path):
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    votes = VOTES | {"votes": ["a", "b", "a"]}
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(votes | {"workers": [decomposed, "ana", "bo"]}))
    (item,) = open_source(path)
    assert [each.annotator_id for each in item.judgments] == [composed, "ana", "bo"]
    path.write_text(json.dumps(votes | {"workers": [composed, decomposed, "bo"]}))
    with pytest.raises(MalformedDataError, match="a worker occurs twice"):
        list(open_source(path))

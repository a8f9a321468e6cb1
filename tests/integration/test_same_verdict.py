"""The same pairs get the same verdict, whatever format and container they come in."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preferences.__main__ import main
from preferences.formats.files import write_records
from preferences.formats.reading import open_source
from preferences.formats.writing import write_items
from preferences.gate import Round, Undecided, decide
from preferences.intake import inspect
from preferences.params import ValidateParams
from preferences.records import TIE, USUAL, Preference, Sourced, pair_id
from preferences.settling import Settled
from preferences.splitting import split_of

FORMATS = ("preferences", "trl", "hh", "scored", "votes", "label_studio", "judgments")
CONTAINERS = ("jsonl", "json", "csv", "parquet", "jsonl.gz", "csv.gz", "json.gz")
MORE = (*CONTAINERS, "tsv", "tsv.gz", "ndjson", "parquet.gz")
LONG = "The parcel that left our house on Monday waits at the station and we do not know why it"
ANSWERS = (
    "", "\u3164", "Yes.", "yes. ", "\uff39es.", "No.", "No, thanks", f"{LONG} is late.",
    f"{LONG} is lost.", "mail me@example.org", "Sure.\n\nHuman: thanks",
)  # fmt: skip
HELDOUT = 0.3
QUESTIONS = ("Where is it?", "Where is what?", "Is it late?", "Who knows?")


def preference(question, chosen, rejected, *, tie):
    """A pair on the side where those of other formats come; our own format keeps its sides."""
    prompt = f"\n\nHuman: {question}\n\nAssistant:"
    return Preference(
        pair_id=pair_id(prompt, chosen, rejected), prompt_id=question, prompt=prompt,
        chosen=chosen, rejected=rejected, label=TIE if tie else 1.0,
        split=split_of(prompt, heldout_fraction=HELDOUT),
    )  # fmt: skip


@st.composite
def data(draw):
    """Pairs with all sorts of defects; none occurs twice letter for letter in any order.

    The format `judgments` would join those, which makes other data of them.
    """
    rows = draw(
        st.lists(
            st.builds(
                preference,
                st.sampled_from(QUESTIONS),
                st.sampled_from(ANSWERS),
                st.sampled_from(ANSWERS),
                tie=st.sampled_from([False, False, True]),
            ),
            min_size=3,
            max_size=25,
            unique_by=lambda row: row.pair_id,
        )
    )
    return [row for row in rows if row.chosen != row.rejected]


def written(folder, rows, name, container):
    """The rows in a format and container."""
    items = [Sourced(row, "here") for row in rows]
    if name == "judgments":
        write_items(folder / "judgments", items, name)
        return folder / "judgments"
    path = folder / f"{name}.{container}"
    if name == "hh":  # Our own writer leaves ties out; others may write them with their label.
        texts = (
            {"chosen": r.prompt + r.chosen, "rejected": r.prompt + r.rejected, "label": r.label}
            for r in rows
        )
        write_records(path, texts, USUAL)
    else:
        write_items(path, items, name)
    return path


def verdict(path, name, ties):
    """What the gate says about a file, without places and numbers about votes."""
    params = ValidateParams(ties=ties)
    settled = Settled(open_source(path, name), HELDOUT, keep_ties=ties == "half")
    measured = inspect(settled, [], params)
    undecided = Undecided(ties=settled.unsettled.ties, skipped=settled.unsettled.skipped)
    found = decide(measured, undecided, params, context=Round()).verdict
    said = found.to_json()
    longer = [number for number in found.numbers if number.name == "longer_wins"]
    return said["verdict"], said["reasons"], said["rows"], said["rules"], longer


@pytest.mark.long
@pytest.mark.parametrize("ties", ["drop", "half"])
@settings(
    max_examples=4, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(rows=data())
def test_the_verdict_is_the_same_in_every_format_and_container(ties, rows, tmp_path):
    expected = None
    for number, name in enumerate(FORMATS):
        for container in (CONTAINERS[number], CONTAINERS[(number + 3) % 7]):
            if name in ("label_studio",) and "csv" in container:
                container = "jsonl"
            found = verdict(written(tmp_path, rows, name, container), name, ties)
            expected = expected or found
            assert found == expected, f"{name} as {container}"


@pytest.mark.long
def test_every_container_of_a_format_holds_the_same(tmp_path):
    rows = [
        preference(QUESTIONS[n % 4], f"Answer {n}.", f"No {n}.", tie=n % 3 == 0) for n in range(12)
    ]
    for name in FORMATS[:6]:
        others = [c for c in MORE if name != "label_studio" or "sv" not in c]
        said = [verdict(written(tmp_path, rows, name, c), name, "drop") for c in others]
        assert said == [said[0]] * len(others), name
        assert said[0][2]["ties"] == 4, name


def test_unpaired_completions_get_the_verdict_of_their_pairs(tmp_path):
    rows = [
        preference(f"{QUESTIONS[n % 4]} {n}", ANSWERS[n % 11], f"No {n}.", tie=False)
        for n in range(30)
    ]
    one, other = (written(tmp_path, rows, name, "jsonl") for name in ("trl", "unpaired"))
    assert verdict(one, "trl", "drop") == verdict(other, "unpaired", "drop")


@pytest.mark.long
def test_rows_with_a_label_of_one_half_are_ties_to_check_and_may_be_kept(tmp_path, capsys):
    rows = [preference(f"Question {n}?", f"Answer {n}.", f"No {n}.", tie=n < 5) for n in range(40)]
    path = written(tmp_path, rows, "trl", "jsonl")
    assert main(["check", str(path), "--report", str(tmp_path / "out")]) == 0
    assert "ties 5" in capsys.readouterr().out
    said = json.loads((tmp_path / "out/verdict.json").read_text())["rows"]
    assert (said["ties"], said["train"] + said["heldout"]) == (5, 35)
    assert main(["check", str(path), "--ties", "half", "--report", str(tmp_path / "out")]) == 0
    said = json.loads((tmp_path / "out/verdict.json").read_text())["rows"]
    assert (said["ties"], said["train"] + said["heldout"]) == (0, 40)

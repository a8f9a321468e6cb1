"""Which pairs a probe counts, how many it needs to decide, and what is written and shown of it."""

import csv
import dataclasses
import random

from preferences.records import Prompt
from rlhf.scoring import Encoder
from tasks.scoring.probe_tables import write_probes
from tasks.scoring.reward_probes import DEMANDS, LEAST, probe, undecided
from tests.tiny import tokenizer
from tests.unit.tasks.scoring.probed_scorers import PAIRS, Reading, asked, known, red, rows, scorer


def test_fewer_pairs_than_an_interval_needs_decide_nothing():
    few = asked(lambda *text: -known(*text), rows(LEAST - 1))
    assert red(few) == set()
    assert few["labels"].won is not None
    assert few["labels"].won.mean == 0.0
    assert "labels" in red(asked(lambda *text: -known(*text), rows(LEAST)))


def test_probes_that_decide_nothing_say_how_many_pairs_were_found_and_are_needed():
    few = list(asked(known, rows(LEAST - 1), []).values())
    words = undecided(few)
    assert words is not None
    assert "at least 100 held-out pairs" in words
    assert "found 99" in words
    assert "prepare.heldout_preferences" in words
    assert undecided(list(asked(known, rows(LEAST)).values())) is None
    # Pairs of earlier rounds count for `labels`, which then decides.
    earlier = [dataclasses.replace(row, pair_id=f"{row.pair_id} again") for row in rows(1)]
    assert undecided(list(asked(known, rows(LEAST - 1), earlier).values())) is None


def test_ties_and_what_is_too_long_are_left_out():
    tied = [dataclasses.replace(row, label=0.5) for row in rows()]
    assert all(one.pairs == 0 for one in asked(known, tied).values())
    whole = Encoder(tokenizer()).encode(rows()[0].prompt, rows()[0].chosen, finished=True)
    encoder = Reading()
    short = scorer(known, encoder, max_tokens=len(whole) + 6)
    found = probe(short, rows(), draws=random.Random(0))
    pairs = {one.name: one.pairs for one in found}
    assert pairs["repeated"] == 0
    assert pairs["empty"] == PAIRS


def test_the_file_has_one_line_for_each_probe(tmp_path):
    found = asked(known)
    write_probes(tmp_path / "probes.csv", list(found.values()))
    with (tmp_path / "probes.csv").open(newline="") as file:
        lines = {line["probe"]: line for line in csv.DictReader(file)}
    assert list(lines) == list(DEMANDS)
    assert (lines["labels"]["pairs"], lines["labels"]["won"]) == ("120", "1.000000")
    assert (lines["labels"]["demand"], lines["labels"]["passed"]) == ("above", "true")
    assert lines["same_length"]["won"] == ""


def test_where_no_side_is_longer_the_rule_of_length_asks_nothing():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()]
    found = asked(known, as_long)
    assert (found["length"].pairs, found["length"].passed) == (0, True)


def test_pairs_that_were_not_scored_do_not_count_towards_the_least():
    encoder = Reading()
    whole = Encoder(tokenizer()).encode(rows()[0].prompt, rows()[0].chosen, finished=True)
    too_long = [dataclasses.replace(row, rejected=row.rejected * 50) for row in rows()[30:]]
    short = scorer(lambda *text: -known(*text), encoder, max_tokens=len(whole) + 6)
    found = probe(short, [*rows()[:30], *too_long], draws=random.Random(0))
    assert all(one.demand == "none" for one in found)


def test_a_response_that_was_cut_is_spoilt_without_an_end_token():
    """A model that prefers ended responses is right about nothing else here."""
    cut = [dataclasses.replace(row, chosen_finished=False) for row in rows()]
    encoder = Reading()
    seen: list[bool] = []
    original = encoder.encode

    def encode(prompt: Prompt, response: str, *, finished: bool) -> list[int]:
        seen.append(finished)
        return original(prompt, response, finished=finished)

    encoder.encode = encode  # type: ignore[method-assign]
    both = [dataclasses.replace(row, rejected_finished=False) for row in cut]
    probe(scorer(known, encoder), both, draws=random.Random(0))
    assert seen
    assert not any(seen)


def test_every_pass_is_counted_and_the_last_one_shown(capsys):
    """The line comes with the last of them alone, so that one more or less would be silent."""
    asked(known)
    assert "probes       7/7 passes" in capsys.readouterr().err
    asked(known, rows(0))
    assert "7/7 passes" in capsys.readouterr().err


def test_a_probe_of_few_pairs_is_only_shown():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()[:4]]
    backwards = {row.rejected for row in as_long}
    found = asked(
        lambda prompt, response: known(prompt, response) + 2 * (response in backwards),
        [*as_long, *rows()[4:]],
    )
    assert found["same_length"].won is not None
    assert found["same_length"].won.mean == 0.0
    assert (found["same_length"].pairs, found["same_length"].demand) == (4, "none")

"""The preference gate on real Great Expectations, from rows and files to files."""

import json
from dataclasses import replace

import pytest

from preferences import expectations, rules
from preferences.allowing import load_allowed
from preferences.expectations import BrokenExpectationError
from preferences.gate import Round, run_gate
from preferences.judging import Judged, judge
from preferences.loading import (
    load_comparisons,
    load_judgments,
    load_preferences,
    load_prompts,
)
from preferences.params import Severities, ValidateParams
from preferences.records import Sourced, pair_id
from tests.integration.gate_rows import PARAMS, gate_fixture, good, sourced  # noqa: F401


def test_good_data_pass_and_every_row_is_there(gate, tmp_path):
    result = gate(good(100))
    assert result.passed
    assert result.reasons == ()
    assert len(result.train) + len(result.heldout) == 100
    assert 10 <= len(result.heldout) <= 40
    assert {row.split for row in result.heldout} == {"heldout"}
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "passed"
    assert (tmp_path / "quarantine.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("rows", "rule", "found"),
    [
        ([("p", "", "b")], "blank_responses", 1),
        ([("p", "a", "A ")], "identical_responses", 1),
        ([("p", "a", "b"), ("p", "b", "a")], "contradictions", 2),
        ([("p", "a", "b"), ("p", "a", "b")], "duplicates", 1),
    ],
)
def test_each_defect_is_set_aside_with_its_rule_and_the_rest_passes(
    gate, tmp_path, rows, rule, found
):
    defects = [sourced(*row, where=f"x.jsonl:{n}") for n, row in enumerate(rows, start=7)]
    result = gate([*good(40), *defects])
    assert result.passed
    assert [entry.rules for entry in result.quarantined] == [(rule,)] * found
    assert len(result.train) + len(result.heldout) == 40 + len(rows) - found
    lines = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["rules"] == [rule]
    assert last["where"] == f"x.jsonl:{6 + len(rows)}"
    assert last["chosen"] == rows[-1][1]


def test_an_error_blocks_and_says_which_rule(gate):
    strict = ValidateParams(severities=Severities(blank_responses="error"))
    result = gate([*good(40), sourced("p", "", "b")], params=strict)
    assert not result.passed
    assert result.reasons == ("blank_responses: 1 row where a response has no visible character",)


def test_a_warning_is_counted_and_the_row_passes(gate):
    lenient = ValidateParams(severities=Severities(duplicates="warn"))
    result = gate([*good(40), *good(1)], params=lenient)
    assert result.passed
    assert result.verdict.to_json()["rules"]["duplicates"] == {
        "severity": "warn",
        "rows": 1,
        "allowed": 0,
        "places": ["x.jsonl:1"],
    }
    assert len(result.train) + len(result.heldout) == 41


def test_ties_of_earlier_rounds_are_dropped_and_counted_like_fresh_ones(gate):
    def tied(entry):
        return Sourced(replace(entry.preference, label=0.5), entry.where)

    fresh = [*good(40), *map(tied, good(3, start=50))]
    earlier = [*good(20, start=100), *map(tied, good(4, start=200))]
    counts = gate(fresh, earlier).verdict.counts
    assert (counts.ties, counts.fresh, counts.earlier) == (7, 40, 20)
    kept = gate(fresh, earlier, params=replace(PARAMS, ties="half")).verdict.counts
    assert (kept.ties, kept.fresh, kept.earlier) == (0, 43, 24)


def test_rows_that_rules_warn_of_are_listed_with_their_place(gate, tmp_path):
    odd = [sourced(f"Odd {n}?", f"<p>Odd {n}</p>", "b", where=f"<b>.jsonl:{n}") for n in range(60)]
    both = sourced("Both?", "mail me@example.org <br>", "", where="both.jsonl:1")
    docs = tmp_path / "docs"
    result = gate([*good(80), *odd, both], docs_dir=docs)
    rules = json.loads((tmp_path / "verdict.json").read_text())["rules"]
    assert rules["html_remains"]["rows"] == 61
    assert rules["html_remains"]["places"] == [f"<b>.jsonl:{n}" for n in range(50)]
    assert rules["personal_data"]["kinds"] == {"email": 1}
    assert rules["blank_responses"]["places"] == ["both.jsonl:1"]
    lines = [json.loads(line) for line in (tmp_path / "warned.jsonl").read_text().splitlines()]
    assert [line["where"] for line in lines] == [*(one.where for one in odd), "both.jsonl:1"]
    assert lines[-1]["rules"] == ["html_remains", "personal_data"]
    assert lines[0]["pair_id"] == odd[0].preference.pair_id
    report, page = (tmp_path / "report.md").read_text(), (docs / "rows.html").read_text()
    assert "- personal\\_data" not in report
    assert "- personal_data: 1 email: both.jsonl:1" in report
    for text in (report, page):
        assert "&lt;b&gt;.jsonl:0" in text
        assert "and 11 more, all in warned.jsonl" in text
        assert "<b>" not in text
        assert "Odd" not in text
    assert "rows.html" in (docs / "index.html").read_text()
    assert result.verdict.findings[0].places == ("both.jsonl:1",)


def test_an_allow_list_puts_back_one_pair_for_one_rule(gate, tmp_path):
    path = tmp_path / "allow.jsonl"
    blank = sourced("p", "", "b")
    entry = {"pair_id": blank.preference.pair_id, "rule": "blank_responses", "why": "silence"}
    path.write_text(json.dumps(entry))
    rows = [*good(40), blank, sourced("q", "", "b")]
    result = gate(rows, context=Round(allowed=load_allowed(path)))
    assert [entry.sourced.preference.prompt for entry in result.quarantined] == ["q"]
    assert result.verdict.to_json()["rules"]["blank_responses"]["allowed"] == 1
    other = Round(allowed=frozenset({(entry["pair_id"], "duplicates")}))
    assert len(gate(rows, context=other).quarantined) == 2


def test_earlier_rows_keep_their_side_and_fresh_rows_of_their_prompts_follow(gate):
    first = gate(good(60))
    side = {row.prompt: row.split for row in (*first.train, *first.heldout)}
    flipped = [
        sourced(f"Question {n}?", f"Answer {n}.", f"No idea {n}.",
                split="train" if side[f"Question {n}?"] == "heldout" else "heldout")
        for n in range(60)
    ]  # fmt: skip
    fresh = [sourced(f"Question {n}?", f"Better {n}.", f"Worse {n}.") for n in range(60)]
    result = gate(fresh, flipped)
    assert result.passed
    for row in (*result.train, *result.heldout):
        assert row.split != side[row.prompt]
    assert [row.chosen[:6] for row in result.train[:3]] == ["Answer"] * 3, "earlier rows first"


def test_a_fresh_copy_of_an_earlier_pair_is_the_one_set_aside(gate):
    result = gate([*good(40, start=20)], good(40))
    assert {entry.origin for entry in result.quarantined} == {"fresh"}
    assert len(result.quarantined) == 20


def test_rows_in_are_rows_out(gate):
    judged = Judged(rows=(*good(40), *good(3)), ties=5, skipped=2, unjudged=1)
    counts = gate(judged, good(10, start=90)).verdict.counts
    assert counts.rows_in == 43 + 10 + 5 + 2 + 1
    assert counts.train + counts.heldout == 50
    assert (counts.quarantined, counts.ties) == (3, 5)


@pytest.mark.long
def test_the_report_is_the_same_bytes_twice_and_shows_no_text_of_the_data(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [*good(30), sourced(evil, evil, evil.upper())]
    for name in ("one", "two"):
        run_gate(
            Judged(rows=tuple(rows)), [], [], PARAMS,
            report_dir=tmp_path / name, docs_dir=tmp_path / f"{name}_docs",
        )  # fmt: skip
    for name in ("verdict.json", "quarantine.jsonl", "report.md"):
        first = (tmp_path / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes()
        assert (b"<script" in first) == (name == "quarantine.jsonl")
    pages = list((tmp_path / "one_docs").rglob("*.html"))
    assert pages
    assert not any("alert(1)" in page.read_text() for page in pages)
    assert not any("Question 1?" in page.read_text() for page in pages)


def test_a_crash_of_an_expectation_is_no_verdict_about_the_data(gate, monkeypatch):
    def crash(_):
        raise KeyError("a defect of ours")

    crashing = [
        rules.Rule(rule.name, rule.reason, rule.columns, crash) if number == 2 else rule
        for number, rule in enumerate(rules.RULES)
    ]
    monkeypatch.setattr(expectations, "_RULES", {rule.name: rule for rule in crashing})
    with pytest.raises(BrokenExpectationError, match="identical_tokens crashed"):
        gate(good(40))


def test_from_the_files_of_a_round_to_the_verdict(gate, tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    pairs = [(f"Question {n}?", f"Right {n}.", f"Wrong {n}.") for n in range(60)]
    comparisons = [
        {
            "pair_id": pair_id(*pair), "round": "r2", "prompt_id": f"p{n}", "prompt": pair[0],
            "response_a": pair[1], "response_b": pair[2], "policy_a": "x", "policy_b": "y",
        }
        for n, pair in enumerate(pairs)
    ]  # fmt: skip
    judgments = [
        {
            "judgment_id": f"j{n}", "pair_id": row["pair_id"], "round": "r2",
            "annotator_id": "sim-1", "kind": "rubric", "annotator_version": "v",
            "choice": "tie" if n < 10 else "a", "strength": None, "shown_order": "AB",
            "revision": 1,
        }
        for n, row in enumerate(comparisons)
    ]  # fmt: skip
    earlier = [entry.preference.to_row() for entry in good(20, start=500)]
    judged = judge(
        load_comparisons(write("comparisons.jsonl", comparisons)),
        load_judgments(write("judgments.jsonl", judgments)),
        weights={"rubric": 0.5},
    )
    prompts = [{"prompt_id": "e", "prompt": "Something else?"}]
    result = gate(
        judged,
        load_preferences(write("earlier.jsonl", earlier)),
        load_prompts(write("prompts.jsonl", prompts)),
    )
    assert result.passed
    assert result.verdict.counts.ties == 10
    fresh = [row for row in (*result.train, *result.heldout) if row.round == "r2"]
    assert len(fresh) == 50
    assert {(row.chosen[:5], row.weight) for row in fresh} == {("Right", 0.5)}

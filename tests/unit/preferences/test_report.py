from preferences.report import Counts, Finding, Verdict, escaped, rows

COUNTS = Counts(
    fresh=3, earlier=1, train=2, heldout=1, fresh_passed=2, quarantined=1, ties=4, skipped=0,
    unjudged=0,
)  # fmt: skip


def test_text_of_the_data_cannot_leave_its_cell_or_become_markup():
    assert escaped("a|b\n# <b>*x*</b> [l](u)") == ("a\\|b # &lt;b&gt;\\*x\\*&lt;/b&gt; \\[l\\](u)")


def test_the_summary_says_why_it_is_blocked_and_where_all_rows_went():
    finding = Finding("blank_responses", "error", (0, 2), allowed=1)
    verdict = Verdict(counts=COUNTS, findings=(finding,), reasons=("blank_responses: 2 rows",))
    text = verdict.to_markdown()
    assert text.startswith(
        "# Preference data: BLOCKED\n\n- blank\\_responses: 2 rows\n\n"
        "Not set aside by any rule: 3 of 4 rows, 2 to train on, 1 held out.\n"
    )
    assert "| blank_responses | BLOCKS the data | 2 | a response has no visible character |" in text
    assert "| ties | 4 |" in text
    assert not verdict.passed


def test_a_passed_summary_says_what_becomes_of_the_rows_that_break_a_rule():
    findings = (
        Finding("split_leaks", "error", ()),
        Finding("blank_responses", "quarantine", (0,), allowed=2),
        Finding("cycles", "warn", (1, 2)),
    )
    text = Verdict(counts=COUNTS, findings=findings, reasons=()).to_markdown()
    assert text.startswith(
        "# Preference data: passed\n\n"
        "Used: 3 of 4 rows, 2 to train on, 1 held out.\n"
        "1 row is set aside and not trained on, each with its rules in quarantine.jsonl. That is "
        "no error: the others pass without them.\n"
        "2 rows are kept although blank_responses finds them: the allow-list says so.\n"
    )
    deeds = {
        "split_leaks": ("would block the data", "0"),
        "blank_responses": ("sets them aside", "1"),
        "cycles": ("only reports them", "2"),
    }
    for rule, (deed, count) in deeds.items():
        assert f"| {rule} | {deed} | {count} |" in text
    assert "allowed" not in text


def test_metrics_are_flat_numbers():
    verdict = Verdict(counts=COUNTS, findings=(Finding("cycles", "warn", (1,)),), reasons=())
    metrics = verdict.metrics()
    assert metrics["passed"] == 1.0
    assert metrics["rows/train"] == 2.0
    assert metrics["rules/cycles"] == 1.0


def test_all_rows_in_are_rows_out():
    assert COUNTS.rows_in == COUNTS.rows_out == 8


def test_rows_in_words():
    assert (rows(1), rows(1200)) == ("1 row", "1,200 rows")

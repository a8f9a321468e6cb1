from preferences.report import Counts, Finding, Verdict, escaped, rows

COUNTS = Counts(
    fresh=3, earlier=1, train=2, heldout=1, fresh_passed=2, quarantined=1, ties=4, skipped=0,
    unjudged=0,
)  # fmt: skip


def test_text_of_the_data_cannot_leave_its_cell_or_become_markup():
    assert escaped("a|b\n# <b>*x*</b> [l](u)") == ("a\\|b # &lt;b&gt;\\*x\\*&lt;/b&gt; \\[l\\](u)")


def test_the_summary_says_why_it_is_blocked_and_where_all_rows_went():
    finding = Finding("blank_responses", "error", (0, 2), allowed=1)
    verdict = Verdict(counts=COUNTS, findings=(finding,), reasons=("because",))
    text = verdict.to_markdown()
    assert text.startswith("# Preference data: BLOCKED\n\n- because\n")
    assert "| blank_responses | error | 2 | 1 | a response has no visible character |" in text
    assert "| ties | 4 |" in text
    assert not verdict.passed


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

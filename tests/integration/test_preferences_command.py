"""`python -m preferences` in a process of its own, on files of all kinds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from preferences.__main__ import main
from preferences.checking import check_measured
from preferences.formats.reading import open_source
from preferences.intake import inspect
from preferences.params import ValidateParams
from preferences.reader import MalformedDataError
from preferences.settling import Settled
from tests.integration.preference_files import ROWS, write

ROOT = Path(__file__).parents[2]


def test_a_good_file_passes_and_leaves_report_data_and_quarantine(tmp_path, capsys):
    rows = [*ROWS, {"prompt": "p", "chosen": "", "rejected": "b", "mood": "grim"}]
    path = write(tmp_path / "x.jsonl", rows)
    out = tmp_path / "5$ ${each}"  # Great Expectations would look for variables of these names.
    assert main(["check", str(path), "--report", str(out)]) == 0
    assert (out / "data_docs/index.html").exists()
    said = capsys.readouterr().out
    assert "format trl, 61 pairs" in said
    assert "columns not read: 'mood'" in said
    assert "blank_responses    quarantine         1" in said
    assert "verdict: passed" in said
    quarantine = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert [row["where"] for row in quarantine] == [f"{path}:61"]
    cleaned = [(out / f"{split}.jsonl").read_text().count("\n") for split in ("train", "heldout")]
    assert sum(cleaned) == 60
    assert "longer wins" in (out / "report.md").read_text()
    assert json.loads((out / "statistics.json").read_text())["longer wins"]["mean"] == 60 / 61


@pytest.mark.parametrize("limit", ["-5", "0", "many"])
def test_a_limit_of_no_tokens_is_refused(tmp_path, capsys, limit):
    path = write(tmp_path / "x.jsonl", ROWS)
    with pytest.raises(SystemExit) as left:
        main(["check", str(path), "--max-tokens", limit])
    assert left.value.code == 2
    expected = f"--max-tokens: {limit!r}, expected a number from 1 on"
    assert expected in capsys.readouterr().err


def test_a_limit_of_tokens_that_nobody_counts_is_refused(tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    assert main(["check", str(path), "--max-tokens", "5"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "--max-tokens: needs --tokenizer, which counts them\n")


def test_tokens_are_counted_up_to_the_limit_that_was_given(tmp_path, capsys):
    path = write(
        tmp_path / "x.jsonl", [*ROWS, {"prompt": "p", "chosen": "a " * 12, "rejected": "d"}]
    )
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))

    def too_long(*limit: str) -> list[str]:
        main(["check", str(path), "--tokenizer", str(tmp_path), *limit])
        lines = capsys.readouterr().out.splitlines()
        return [line.split()[-1] for line in lines if line.split()[0] == "token_limit"]

    assert (too_long(), too_long("--max-tokens", "10")) == (["0"], ["1"])


def test_a_report_among_the_files_of_a_folder_is_refused_before_it_is_one_of_them(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    write(data / "x.jsonl", ROWS)
    assert main(["check", str(data), "--report", str(data / "report")]) == 2
    problem = f"lies in {data}, which is read; choose another folder"
    assert capsys.readouterr().err == f"{data / 'report'}: {problem}\n"
    assert [path.name for path in data.iterdir()] == ["x.jsonl"]


def test_votes_are_settled_and_their_agreement_shown(tmp_path, capsys):
    rows = [
        {
            "prompt": f"Question {n}?", "response_a": f"yes {n}", "response_b": f"no {n}",
            "votes": ["a", "a", "tie" if n < 5 else "a", "b"], "workers": ["x", "y", "z", "bad"],
        }
        for n in range(60)
    ]  # fmt: skip
    path = write(tmp_path / "x.jsonl", rows)
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr().out
    assert "ties 5" in said
    assert "krippendorff alpha: " in said
    assert 'weak annotators: "bad"' in said


@pytest.mark.parametrize("command", ["check", "convert"])
def test_a_malformed_file_exits_2_with_one_line_per_problem_and_writes_nothing(tmp_path, command):
    path = write(tmp_path / "x.jsonl", [*ROWS, {"prompt": "p", "chosen": None, "rejected": "b"}])
    out = tmp_path / "out.jsonl"
    more = ["--report", str(out)] if command == "check" else [str(out), "--to", "trl"]
    run = subprocess.run(
        [sys.executable, "-m", "preferences", command, str(path), *more],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == f'{path}:61: field "chosen": expected text or messages, got null\n'
    assert run.stdout == ""
    assert not out.exists()


def test_data_that_change_between_the_two_readings_are_refused(tmp_path):
    path = write(tmp_path / "x.jsonl", ROWS)
    rows = Settled(open_source(path), 0.15)
    measured = inspect(rows, [], ValidateParams())
    write(path, ROWS[:-1])
    with pytest.raises(MalformedDataError, match="changed while in use: 59 pairs, 60"):
        check_measured(
            rows, measured, allowed=frozenset(), report_dir=tmp_path, params=ValidateParams()
        )


REAL = ROOT.parent / "shared" / "data"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param(
            "hh_helpful",
            {"blank_responses": 4, "extra_turns": 35, "contradictions": 0},
            marks=pytest.mark.long,
        ),
        ("polite_instructions", {"identical_responses": 6, "blank_responses": 0}),
    ],
)
def test_natural_defects_of_real_data_are_found(tmp_path, name, found):
    path = REAL / name / "preferences.jsonl"
    if not path.exists():
        pytest.skip(f"the real data are not beside the project ({path})")
    main(["check", str(path), "--report", str(tmp_path)])
    rules = json.loads((tmp_path / "verdict.json").read_text())["rules"]
    assert {rule: rules[rule]["rows"] for rule in found} == found


@pytest.mark.long
def test_a_report_never_takes_the_place_of_what_is_read(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["check", str(write(tmp_path / "x.jsonl", ROWS)), "--report", str(out)]) == 0
    train, heldout = out / "train.jsonl", out / "heldout.jsonl"
    before = {path: path.read_bytes() for path in (train, heldout)}
    inside = write(out / "data_docs/x.jsonl", ROWS)
    before[inside] = inside.read_bytes()
    capsys.readouterr()
    for arguments in (
        [train, "--report", out],
        [inside, "--report", out],
        [out, "--report", out],
        [tmp_path / "x.jsonl", "--against", heldout, "--report", out],
    ):
        assert main(["check", *map(str, arguments)]) == 2
        assert "choose another folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def test_a_report_removes_no_folder_that_it_has_not_written(tmp_path, capsys):
    out, path = tmp_path / "out", write(tmp_path / "x.jsonl", ROWS)
    (out / "data_docs").mkdir(parents=True)
    (out / "data_docs/thesis.txt").write_text("mine")
    assert main(["check", str(path), "--report", str(out)]) == 2
    assert "that no report has written" in capsys.readouterr().err
    assert (out / "data_docs/thesis.txt").read_text() == "mine"


@pytest.mark.long
def test_a_report_takes_the_place_of_a_link_and_not_of_what_it_leads_to(tmp_path):
    out, path, other = tmp_path / "out", write(tmp_path / "x.jsonl", ROWS), tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    out.mkdir()
    (out / "data_docs").symlink_to(other)
    assert main(["check", str(path), "--report", str(out)]) == 0
    assert [entry.name for entry in other.iterdir()] == ["thesis.txt"]
    assert (out / "data_docs/index.html").is_file()


@pytest.mark.long
def test_a_check_that_ends_early_leaves_the_report_before_it_as_it_was(tmp_path, monkeypatch):
    out, path = tmp_path / "out", write(tmp_path / "x.jsonl", ROWS)
    assert main(["check", str(path), "--report", str(out)]) == 0
    before = {entry.name for entry in tmp_path.iterdir()}, (out / "train.jsonl").read_bytes()
    settled = Settled(open_source(path), 0.2)
    measured = inspect(settled, [], ValidateParams())
    write(path, ROWS[:-1])
    with pytest.raises(MalformedDataError, match="changed while in use"):
        check_measured(
            settled, measured, allowed=frozenset(), report_dir=out, params=ValidateParams()
        )
    after = {entry.name for entry in tmp_path.iterdir()}, (out / "train.jsonl").read_bytes()
    assert after == before


@pytest.mark.parametrize("wrong", ["file", "below a file"])
def test_a_report_that_cannot_be_written_is_said_before_the_work(wrong, tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    report = path if wrong == "file" else path / "report"
    assert main(["check", str(write(tmp_path / "y.jsonl", ROWS)), "--report", str(report)]) == 2
    assert str(report) in capsys.readouterr().err


@pytest.mark.parametrize(("votes", "ties"), [(["tie"], 1), (["skip"], 0)])
def test_data_without_a_preference_are_blocked_with_a_report(votes, ties, tmp_path, capsys):
    row = {
        "prompt": "p", "response_a": "a", "response_b": "b", "votes": votes, "workers": ["x"],
    }  # fmt: skip
    path, out = write(tmp_path / "x.jsonl", [row]), tmp_path / "out"
    assert main(["check", str(path), "--report", str(out)]) == 1
    said = capsys.readouterr().out
    assert f"ties {ties}" in said
    assert "blocked: no rows" in said
    assert (out / "data_docs/index.html").is_file()


HOSTILE = "<scr<script></script>ipt>alert(1)</script><meta http-equiv=refresh content=0>\x1b[31m"


@pytest.mark.long
def test_no_name_of_an_annotator_runs_in_the_report_or_steers_the_terminal(tmp_path, capsys):
    rows = [
        {
            "prompt": f"Question {n}?", "response_a": f"yes {n}", "response_b": f"no {n}",
            "votes": ["a", "a", "a", "b"], "workers": ["x", "y", "z", HOSTILE],
        }
        for n in range(60)
    ]  # fmt: skip
    out = tmp_path / "out"
    assert main(["check", str(write(tmp_path / "x.jsonl", rows)), "--report", str(out)]) == 0
    pages = [page.read_text() for page in out.rglob("*.html")]
    assert any("weak_annotators" in page for page in pages)
    for text in [*pages, (out / "report.md").read_text()]:
        assert "<script" not in text
        assert "<meta http-equiv=refresh" not in text
        assert "\x1b" not in text
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "weak annotators: " in said


@pytest.mark.long
def test_severities_limits_and_patterns_of_check_can_be_set(tmp_path, capsys):
    rows = [*ROWS, {"prompt": "p", "chosen": "one<br>two, ask EMP-20417", "rejected": "b"}]
    path = write(tmp_path / "x.jsonl", rows)
    assert main(["check", str(path)]) == 0
    assert main(["check", str(path), "--severity", "html_remains=error"]) == 1
    assert "blocked: html_remains: 1 row where" in capsys.readouterr().out
    loose = ["--severity", "html_remains=error", "--limit", "html_remains=0.1"]
    assert main(["check", str(path), *loose]) == 0
    own = ["--personal", r"staff=EMP-\d{5}", "--severity", "personal_data=quarantine"]
    assert main(["check", str(path), *own, "--report", str(tmp_path / "out")]) == 0
    rules = json.loads((tmp_path / "out/verdict.json").read_text())["rules"]
    assert rules["personal_data"]["kinds"] == {"staff": 1}
    assert rules["personal_data"]["places"] == [f"{path}:61"]
    assert (tmp_path / "out/warned.jsonl").read_text().count("html_remains") == 1
    capsys.readouterr()
    assert main(["check", str(path), "--severity", "html=error"]) == 2
    assert capsys.readouterr().err.startswith("--severity html=error: no such rule or number")


def test_an_entry_of_the_allow_list_that_fits_no_row_is_said(tmp_path, capsys):
    path = write(tmp_path / "x.jsonl", ROWS)
    allowed = write(
        tmp_path / "allowed.jsonl",
        [{"pair_id": "0" * 16, "rule": "extra_turns", "why": "looked at"}],
    )
    assert main(["check", str(path), "--allow", str(allowed)]) == 0
    assert "allow-list: 1 of 1 entries match no pair" in capsys.readouterr().out

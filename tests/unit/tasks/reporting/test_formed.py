"""Whose judgments, and what else, formed a policy."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tasks.forgetting.own_rows import without
from tasks.forgetting.wanted import Wanted
from tasks.report import build_report
from tasks.reporting.annotators import AnnotatorRow, FormedRow, read_annotators, read_formed
from tasks.reporting.descent import SFT, formed_in
from tasks.running.staging import write_json_lines
from tests.unit.tasks.reporting.conftest import report
from tests.unit.tasks.reporting.report_world import chained


def test_annotators_are_listed_with_what_became_of_their_judgments(world: Path) -> None:
    def table(final: str) -> list[list[str]]:
        build_report(world, chained(), final, world / "reports", seed=0)
        text = (world / "reports/index.html").read_text(encoding="utf-8")
        rows = text.partition(f"Whose judgments formed {final}")[2]
        body = rows.partition("</table>")[0].partition("<tbody>")[2]
        return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]

    (world / "reports").mkdir(exist_ok=True)
    rounds = ["1,000"] * 3
    assert table("r3") == [
        ["sim-1", "rubric", *rounds, "3,000", "0", "0"],
        ["&lt;b&gt;ben", "human", "500", "500", "500", "600", "600", "300"],
    ]
    # What came later did not form an earlier policy.
    assert table("r2")[1] == ["&lt;b&gt;ben", "human", "500", "500", "400", "400", "200"]


def test_a_round_that_the_policy_does_not_come_from_did_not_form_it(world: Path) -> None:
    rounds = chained()
    assert formed_in(rounds, "r3") == ["r1", "r2", "r3"]
    rounds["r3"] = chained(("r1", "r3"))["r3"]
    text = report(world, final="r3", params=rounds)
    rows = text.partition("Whose judgments formed r3")[2].partition("</table>")[0]
    assert re.findall(r"<th>(r\d)</th>", rows) == ["r1", "r3"]
    assert "<td>2,000</td>" in rows
    formed = text.partition("<summary>What formed r3</summary>")[2].partition("</details>")[0]
    assert "<td>2,000</td>" in formed

    # A policy that starts anew was formed by what made its comparisons and its preferences.
    rounds["r3"] = replace(rounds["r3"], start=SFT)
    assert formed_in(rounds, "r3") == ["r1", "r3"]
    alone = chained(("r2",))["r2"]
    for name in ("policy", "reward_model", "preferences"):
        one = replace(alone, **{name: getattr(chained()["r2"], name)})
        assert formed_in(chained() | {"r2": one}, "r2") == ["r1", "r2"]
    assert formed_in(chained() | {"r2": alone}, "r2") == ["r2"]


def test_a_judgment_in_two_rows_counts_once_and_no_judgment_makes_no_row(tmp_path: Path) -> None:
    row = {"judgment_id": "j", "pair_id": "p", "annotator_id": "ada", "kind": "human"}
    for key, rows in (("r1", [row, row]), ("r2", [])):
        (tmp_path / "data/rounds" / key).mkdir(parents=True)
        write_json_lines(tmp_path / "data/rounds" / key / "judgments.jsonl", rows)
    (ada,) = read_annotators(tmp_path, ["r1", "r2", "r3"])
    assert (ada.by_round, ada.by_side) == ({"r1": 1}, {"left out": 1})


def test_what_stands_where_judgments_were_withdrawn_is_no_annotators(tmp_path: Path) -> None:
    """`tasks.forget` leaves a skip for each in an own file: they were a row each in the report."""
    said = [
        {"judgment_id": name, "pair_id": "p", "round": "r1", "annotator_id": name[:3],
         "kind": "human", "choice": "a", "revision": 1, "shown_order": None}
        for name in ("ada-1", "ben-1", "ben-2", "ben-3")
    ]  # fmt: skip
    file = tmp_path / "data/rounds/r1/judgments.jsonl"
    file.parent.mkdir(parents=True)
    write_json_lines(file, said)
    file.write_bytes(without(file, Wanted("annotator", "ben")))

    (ada,) = found = read_annotators(tmp_path, ["r1"])

    assert (ada.annotator, ada.by_round) == ("ada", {"r1": 1})
    formed = read_formed(tmp_path, ["r1"], {}, found)
    assert [one for one in formed if one.what == "judgments"] == [
        FormedRow("judgments", "human", 1)
    ]


def test_what_formed_the_policy_is_counted_by_kind_and_source(world: Path) -> None:
    text = report(world)
    section = text.partition("<summary>What formed r3</summary>")[2].partition("</details>")[0]
    rows = section.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r"<t[hd]>(.*?)</t[hd]>", rows.replace("\n", "")) == [
        "tokens of documents", "support desk", "1,843,200",
        "demonstrations", "support desk", "29,990",
        # 250 prompts that all rounds have, and 1,000 of each round's own.
        "prompts of judged pairs", "support desk", "3,250",
        "judgments", "rubric", "3,000",
        "judgments", "human", "1,500",
    ]  # fmt: skip
    assert "<code>python -m tasks.lineage r3</code>" in section
    assert "<code>python -m tasks.lineage --source NAME</code>" in section


def test_own_files_and_preferences_to_start_with_are_named_as_lineage_names_them(
    tmp_path: Path,
) -> None:
    """One round, whose gate refused one of two judged pairs, after 3, 2 and 1 pairs of others."""
    files = {
        "prompts": "mine/asked", "demonstrations": "mine/shown", "corpus": None,
        "preferences": "mine/pairs",
    }  # fmt: skip
    folder = tmp_path / "data/rounds/r1"
    (folder / "preferences").mkdir(parents=True)
    write_json_lines(
        folder / "comparisons.jsonl", [{"pair_id": pair, "prompt_id": "q"} for pair in "ab"]
    )
    rows = [{"pair_id": pair, "source": "old/data"} for pair in "cde"]
    rows += [{"pair_id": "h", "source": ""}]
    rows += [{"pair_id": "f", "source": "hub/set"}, {"pair_id": "a", "source": "human"}]
    write_json_lines(folder / "preferences/train.jsonl", rows)
    write_json_lines(folder / "preferences/heldout.jsonl", [{"pair_id": "g", "source": "hub/set"}])
    sft = tmp_path / "results/sft"
    sft.mkdir(parents=True)
    (sft / "metrics.json").write_text('{"demonstrations": 7}')
    ada = AnnotatorRow(annotator="ada", kind="human", by_round=Counter(r1=2))
    # Of a model of one's own base says nothing of tokens, and r2 has not run yet.
    assert read_formed(tmp_path, ["r1", "r2"], files, [ada]) == [
        FormedRow("demonstrations", "mine/shown", 7),
        FormedRow("prompts of judged pairs", "mine/asked", 1),
        FormedRow("preferences to start with", "old/data", 3),
        FormedRow("preferences to start with", "hub/set", 2),
        FormedRow("preferences to start with", "mine/pairs", 1),
        FormedRow("judgments", "human", 2),
    ]
    # Where nobody labels, the pairs of the rounds are judged by nobody.
    whats = {row.what for row in read_formed(tmp_path, ["r1"], files, [])}
    assert whats == {"demonstrations", "preferences to start with"}

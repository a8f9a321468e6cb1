"""The report: one page, complete, deterministic, safe with hostile text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.params.changed import ChangedParam
from tasks.params.loading import ParamsError
from tasks.report import build_report
from tasks.reporting.data import read_lineage, read_samples
from tasks.reporting.lineage import lineage_rows
from tasks.reporting.page import number, signed
from tasks.running.staging import write_json_lines
from tests.unit.tasks.reporting.conftest import ROUNDS, Page, report
from tests.unit.tasks.reporting.report_world import chained, folder_hash, write_world


def test_the_same_files_give_the_same_bytes(world: Path, tmp_path: Path) -> None:
    write_world(tmp_path)
    assert report(world) == report(tmp_path)
    names = ("index.html", "results.json")
    here = [(world / "reports" / name).read_bytes() for name in names]
    assert here == [(tmp_path / "reports" / name).read_bytes() for name in names]


@pytest.mark.parametrize(
    ("rounds", "found"), [((), "there are none"), (("r1", "r2"), "r1, r2")], ids=["none", "others"]
)
def test_a_report_without_its_final_round_says_what_there_is(
    tmp_path: Path, rounds: tuple[str, ...], found: str
) -> None:
    with pytest.raises(ParamsError, match=f"^final: 'sft' is not one of the rounds: {found}$"):
        build_report(tmp_path, chained(rounds), "sft", tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_the_page_fetches_nothing_and_runs_nothing(world: Path) -> None:
    text = report(world)
    page = Page(text)
    assert not {"script", "iframe", "object", "embed", "img", "form"} & set(page.tags)
    fetching = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert fetching == ["data:,", "run.html"]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_headline_rounds_curves_accuracies_and_lineage_are_all_there(world: Path) -> None:
    text = report(world)
    assert "From 4.4 to 8.6 in 3 rounds." in text
    page = Page(text)
    # Six curves of PPO and the reward model's loss in each round; base, SFT, gold against KL; three
    # charts of best-of-n, in two of them a line for each round, and PPO's way in each.
    assert page.tags.count("polyline") == 7 * len(ROUNDS) + 3 + 3 + 2 * len(ROUNDS) + 1
    for title in ("Pre-training loss", "SFT loss", "Reward model loss", "Gold against KL",
                  "Reward model&#39;s score", "Gold score", "KL to SFT", "Entropy",
                  "Clip fraction", "Explained variance"):  # fmt: skip
        assert f"<b>{title}</b>" in text
    assert text.count('class="before"') == 2  # the first round has no model before
    assert text.count('class="box reward"') == 3
    assert text.count("1,500 labels") == 3
    assert "<code>python -m tasks.lineage r3</code>" in text


def test_the_headline_counts_the_rounds_that_the_final_policy_went_through(world: Path) -> None:
    def headline(final: str, start_of_r3: str, **options: int) -> str:
        rounds = chained()
        rounds["r3"] = replace(rounds["r3"], start=start_of_r3)
        text = report(world, final=final, params=rounds, **options)
        return text.partition("<h1>")[2].partition("</h1>")[0].partition(",")[0].rstrip(".")

    r1, r2 = (f"models/rounds/{key}/policy" for key in ("r1", "r2"))
    assert headline("r1", r2).endswith(" in 1 round")
    assert headline("r3", r2).endswith(" in 3 rounds")
    assert headline("r3", r1).endswith(" in 2 rounds")
    assert headline("r3", "models/sft").endswith(" in 1 round")
    assert headline("r3", r2, start_sft=1).endswith(" in 1 round")


def test_the_table_has_the_win_rate_against_the_round_before(world: Path) -> None:
    table = report(world).partition("Round by round")[2].partition("</table>")[0]
    assert "against the round before" in table
    assert table.count("<b>0.600</b>") == len(ROUNDS)
    assert "0.560 to 0.640" in table


def test_parameters_that_differ_from_the_defaults_are_listed(world: Path) -> None:
    out = world / "reports"
    out.mkdir(exist_ok=True)
    changed = [ChangedParam("ppo.kl_coef", 0.5, 0.05), ChangedParam("base.model", "<b>mine", None)]
    build_report(world, chained(), "r3", out, seed=0, changed=changed)
    text = (out / "index.html").read_text(encoding="utf-8")
    table = text.partition("Parameters that differ from the defaults")[2].partition("</table>")[0]
    rows = re.findall(r"<tr><th><code>(.*?)</code></th><td>(.*?)</td><td>(.*?)</td>", table)
    assert rows == [("ppo.kl_coef", "0.5", "0.05"), ("base.model", "&lt;b&gt;mine", "null")]
    assert "All parameters have their default values." in report(world)


def test_the_page_leads_to_what_changes_from_run_to_run(world: Path) -> None:
    header = report(world).partition("<header>")[2].partition("</header>")[0]
    assert '<a href="run.html">' in header


def test_the_gates_verdict_names_what_it_objected_to(world: Path) -> None:
    section = report(world).partition("The gate’s verdict")[2].partition("</table>")[0]
    first, second, third = re.findall(r"<tr><th>r\d.*?</tr>", section, re.S)
    assert "passed" in first
    assert "–" in first.rpartition("<td>")[2]
    assert "duplicates: 7 rows" in second
    assert "damaged_text: 3 rows" in second
    assert "first_wins out of bounds" in second
    assert "duplicates" not in third


def test_a_headline_that_the_test_prompts_contradict_says_so_itself(tmp_path: Path) -> None:
    write_world(tmp_path)
    assert "prompts contradict" not in report(tmp_path)
    metrics = tmp_path / "results/test/metrics.json"
    record = json.loads(metrics.read_text())
    record["gold"] = {"mean": 7.1, "low": 6.9, "high": 7.3, "n": 512}
    metrics.write_text(json.dumps(record))
    text = report(tmp_path)
    headline = text.partition("<h1>")[2].partition("</h1>")[0]
    assert headline == "From 4.4 to 8.6 in 3 rounds, but 7.1 on the test prompts."
    header = text.partition("<header>")[2].partition("</header>")[0]
    assert "The test prompts contradict the held-out ones: gold 7.10 [6.90, 7.30]" in header
    assert '<tr class="test contradicts">' in text


def test_a_round_that_is_not_shown_to_be_better_is_named_in_the_headline_and_marked_in_the_table(
    tmp_path: Path,
) -> None:
    write_world(tmp_path)
    metrics = tmp_path / "results/evaluate/r3/metrics.json"
    record = json.loads(metrics.read_text())
    record["win_rate_vs_previous"] = {"mean": 0.51, "low": 0.47, "high": 0.55, "n": 512}
    metrics.write_text(json.dumps(record))
    text = report(tmp_path)
    header = text.partition("<header>")[2].partition("</header>")[0]
    assert "r3 is not distinguishable from the policy it started from" in header
    assert text.count('class="final contradicts"') == 1
    rounds = chained()
    rounds["r3"] = replace(rounds["r3"], start="models/sft")
    text = report(tmp_path, params=rounds)
    header = text.partition("<header>")[2].partition("</header>")[0]
    assert "r3 is not distinguishable from the policy that sampled its comparisons: its" in header
    assert "it started from" not in header


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</p></article><style>*{display:none}</style>",
        "{{ 7 * 7 }}{% raw %}",
        "javascript:alert(1)",
        "<svg/onload=alert(1)>",
    ],
)
def test_hostile_text_in_any_file_stays_text(tmp_path: Path, hostile: str) -> None:
    write_world(tmp_path)
    clean = Page(report(tmp_path))
    samples = tmp_path / "results/evaluate/r3/samples.jsonl"
    row = json.loads(samples.read_text().splitlines()[0])
    row |= {"prompt": hostile, "sft": hostile, "response": hostile}
    samples.write_text((json.dumps(row) + "\n") * 40)
    manifest = tmp_path / "models/rounds/r3/policy/manifest.json"
    record = json.loads(manifest.read_text())
    record["inputs"][f"data/{hostile}"] = hostile
    manifest.write_text(json.dumps(record))
    page = Page(report(tmp_path))
    extra = [tag for tag in set(page.tags) if tag not in clean.tags]
    assert extra == []
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags.count("style") == clean.tags.count("style")


def test_control_characters_and_lone_surrogates_are_made_visible(tmp_path: Path) -> None:
    write_world(tmp_path)
    samples = tmp_path / "results/evaluate/r3/samples.jsonl"
    row = json.loads(samples.read_text().splitlines()[0])
    row["response"] = "a\x00b\x1b[2Jc\ud800d" + "x" * 5000
    samples.write_text(json.dumps(row) + "\n")
    text = report(tmp_path)
    assert "a␀b␛[2Jc\N{REPLACEMENT CHARACTER}d" in text
    assert "x" * 2001 not in text
    assert re.search(r"\([\d,]+ more characters\)", text)


def test_a_response_that_was_cut_is_marked_where_it_ends(tmp_path: Path) -> None:
    """Every second response of SFT is cut in this world, none of the final policy's."""
    write_world(tmp_path)
    shown = re.findall(r'<p dir="auto">([^<]*)(<span[^>]*>[^<]*</span>)?', report(tmp_path))
    marks = {text.strip(): [] for text, _ in shown}
    for text, mark in shown:
        marks[text.strip()].append("(cut at the length limit)" in mark)
    assert {text.split()[0]: set(found) for text, found in marks.items()} == {
        "We": {True, False},
        "Hello": {False},
    }


def test_data_without_gold_still_makes_a_page(tmp_path: Path) -> None:
    write_world(tmp_path, gold=False)
    text = report(tmp_path)
    assert " wins 89 % of comparisons with SFT." in text
    assert "<b>Gold score</b>" not in text
    # Of best-of-n the proxy is left: one line of n, and one of PPO.
    assert Page(text).tags.count("polyline") == 6 * len(ROUNDS) + 2 + 2
    assert "Gold against KL" not in text


@pytest.mark.parametrize(
    ("gold", "what"), [(True, "as their gold scores do"), (False, "as their labels do")]
)
def test_the_page_says_what_reward_models_are_right_about_and_in_which_units(
    tmp_path: Path, gold: bool, what: str
) -> None:
    write_world(tmp_path, gold=gold)
    text = report(tmp_path)
    assert f"How often a reward model orders held-out pairs of the newest policy {what}" in text
    assert "<th>pairs so far</th>" in text
    assert "calibration error, against labels" in text
    assert "<th>length, tokens</th>" in text


def test_a_mean_that_is_zero_but_for_rounding_has_no_sign() -> None:
    assert number(-0.004) == "0.00"
    assert number(-0.006) == "\N{MINUS SIGN}0.01"
    assert signed(-0.004) == "+0.00"


def test_a_run_that_has_only_begun_makes_a_page(tmp_path: Path) -> None:
    assert "No round has been evaluated yet." in report(tmp_path, ())
    write_world(tmp_path, ("r1",))
    assert "in 1 round." in report(tmp_path, ("r1",))


def test_samples_run_evenly_from_the_largest_gain_to_the_largest_loss(world: Path) -> None:
    shown, total = read_samples(world, "r3", 5)
    gains = [(s.gold_after or 0) - (s.gold_before or 0) for s in shown]
    lines = (world / "results/evaluate/r3/samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    ranked = sorted((row["gold"] - row["gold_sft"] for row in rows), reverse=True)
    assert total == 40
    assert gains == pytest.approx([ranked[n] for n in (0, 10, 20, 29, 39)])


def test_a_sample_may_hold_the_ends_of_lines_of_unicode(world: Path) -> None:
    path = world / "results/evaluate/r3/samples.jsonl"
    row = json.loads(path.read_text().splitlines()[0]) | {"response": "a\u2028b\u2029c\u0085d"}
    write_json_lines(path, [row])
    assert len(read_samples(world, "r3", 5)[0]) == 1


def test_the_lineage_says_so_when_later_stages_used_different_states(tmp_path: Path) -> None:
    write_world(tmp_path)
    assert "later stages disagree" not in report(tmp_path)
    manifest = tmp_path / "models/rounds/r3/policy/manifest.json"
    record = json.loads(manifest.read_text())
    record["inputs"]["models/sft"] = "0" * 32 + ".dir"
    manifest.write_text(json.dumps(record))
    rows = {row.path: row for row in lineage_rows(read_lineage(tmp_path, ROUNDS))}
    assert rows["models/sft"].known_as == ("0" * 32 + ".dir", folder_hash("models/sft"))
    assert "later stages disagree" in report(tmp_path)


def test_a_round_without_a_reward_model_has_none_in_the_lineage(tmp_path: Path) -> None:
    """Its folder has words in the place of weights."""
    write_world(tmp_path)
    assert [row.path for row in lineage_rows(read_lineage(tmp_path, ["r1"]))].count(
        "models/rounds/r1/reward"
    )
    manifest = tmp_path / "models/rounds/r1/reward/manifest.json"
    record = json.loads(manifest.read_text())
    record["files"] = {"README.md": {"sha256": "0" * 64, "bytes": 60}}
    manifest.write_text(json.dumps(record))

    rows = lineage_rows(read_lineage(tmp_path, ["r1"]))

    assert "models/rounds/r1/reward" not in [row.path for row in rows]


def test_the_page_shows_the_loss_of_sft_on_held_out_demonstrations(tmp_path: Path) -> None:
    write_world(tmp_path, gold=False)
    assert "held-out demonstrations" not in report(tmp_path)
    heldout = {"demonstrations": 40, "base": 1.1614, "sft": 0.7792}
    (tmp_path / "results/sft/metrics.json").write_text(json.dumps({"heldout": heldout}))
    shown = "SFT on 40 held-out demonstrations: 1.161 → 0.779 nats a token."
    assert shown in report(tmp_path)

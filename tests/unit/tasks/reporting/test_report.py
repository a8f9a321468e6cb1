"""The report: one page, complete, deterministic, safe with hostile text."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tasks.params.changed import ChangedParam
from tasks.report import build_report
from tasks.reporting.annotators import AnnotatorRow, FormedRow, read_annotators, read_formed
from tasks.reporting.charts import nice_ticks
from tasks.reporting.data import read_curves, read_lineage, read_samples
from tasks.reporting.lineage import lineage_rows
from tasks.running.staging import write_json_lines
from tests.unit.tasks.reporting.report_world import folder_hash, write_world

ROUNDS = ("r1", "r2", "r3")


class Page(HTMLParser):
    """Counts tags, collects links and everything that could run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def report(root: Path, rounds: tuple[str, ...] = ROUNDS, **options: int) -> str:
    out = root / "reports"
    out.mkdir(exist_ok=True)
    build_report(root, rounds, rounds[-1] if rounds else "r1", out, seed=0, **options)
    return (out / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    write_world(root)
    return root


def test_the_same_files_give_the_same_bytes(world: Path, tmp_path: Path) -> None:
    write_world(tmp_path)
    assert report(world) == report(tmp_path)
    names = ("index.html", "results.json")
    here = [(world / "reports" / name).read_bytes() for name in names]
    assert here == [(tmp_path / "reports" / name).read_bytes() for name in names]


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


def test_annotators_are_listed_with_what_became_of_their_judgments(world: Path) -> None:
    def table(final: str) -> list[list[str]]:
        build_report(world, ROUNDS, final, world / "reports", seed=0)
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


def test_a_judgment_in_two_rows_counts_once_and_no_judgment_makes_no_row(tmp_path: Path) -> None:
    row = {"judgment_id": "j", "pair_id": "p", "annotator_id": "ada", "kind": "human"}
    for key, rows in (("r1", [row, row]), ("r2", [])):
        (tmp_path / "data/rounds" / key).mkdir(parents=True)
        write_json_lines(tmp_path / "data/rounds" / key / "judgments.jsonl", rows)
    (ada,) = read_annotators(tmp_path, ["r1", "r2", "r3"])
    assert (ada.by_round, ada.by_side) == ({"r1": 1}, {"left out": 1})


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
    """One round, whose gate refused one of two judged pairs, after 3 and 2 pairs of others."""
    files = {"prompts": "mine/asked", "demonstrations": "mine/shown", "corpus": None}
    folder = tmp_path / "data/rounds/r1"
    (folder / "preferences").mkdir(parents=True)
    write_json_lines(
        folder / "comparisons.jsonl", [{"pair_id": pair, "prompt_id": "q"} for pair in "ab"]
    )
    rows = [{"pair_id": pair, "source": "old/data"} for pair in "cde"]
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
        FormedRow("judgments", "human", 2),
    ]
    # Where nobody labels, the pairs of the rounds are judged by nobody.
    whats = {row.what for row in read_formed(tmp_path, ["r1"], files, [])}
    assert whats == {"demonstrations", "preferences to start with"}


def test_the_table_has_the_win_rate_against_the_round_before(world: Path) -> None:
    table = report(world).partition("Round by round")[2].partition("</table>")[0]
    assert "against the round before" in table
    assert table.count("<b>0.600</b>") == len(ROUNDS)
    assert "0.560 to 0.640" in table


def test_parameters_that_differ_from_the_defaults_are_listed(world: Path) -> None:
    out = world / "reports"
    out.mkdir(exist_ok=True)
    changed = [ChangedParam("ppo.kl_coef", 0.5, 0.05), ChangedParam("base.model", "<b>mine", None)]
    build_report(world, ROUNDS, "r3", out, seed=0, changed=changed)
    text = (out / "index.html").read_text(encoding="utf-8")
    table = text.partition("Parameters that differ from the defaults")[2].partition("</table>")[0]
    rows = re.findall(r"<tr><th><code>(.*?)</code></th><td>(.*?)</td><td>(.*?)</td>", table)
    assert rows == [("ppo.kl_coef", "0.5", "0.05"), ("base.model", "&lt;b&gt;mine", "null")]
    assert "All parameters have their default values." in report(world)


def test_the_page_leads_to_what_changes_from_run_to_run(world: Path) -> None:
    header = report(world).partition("<header>")[2].partition("</header>")[0]
    assert '<a href="run.html">' in header


def test_a_new_column_of_history_appears_among_the_folded_curves(tmp_path: Path) -> None:
    write_world(tmp_path)
    assert "All other PPO metrics" not in report(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        header, *rows = history.read_text().splitlines()
        rows = [f"{row},{number}" for number, row in enumerate(rows)]
        history.write_text("\n".join([f"{header},policy/<new>", *rows]) + "\n")
    text = report(tmp_path)
    section = text.partition("<h2>Training curves</h2>")[2].partition("</section>")[0]
    folded = section.partition("<details><summary>All other PPO metrics")[2]
    folded = folded.partition("</details>")[0]
    assert "policy/&lt;new&gt;</b>" in folded
    assert "<new>" not in text
    # One chart with a line per round; what is drawn above is not drawn again.
    assert folded.count("<svg") == 1
    assert folded.count("<polyline") == len(ROUNDS)
    # 0 to 23 on an axis from 0 at the bottom (130 - 20) to 30 at the top (22).
    first = folded.partition('points="')[2].partition('"')[0].split()
    heights = [float(point.partition(",")[2]) for point in first]
    assert heights[0] == 110.0
    assert heights[-1] == pytest.approx(110 - 88 * 23 / 30, abs=0.06)


def test_gold_lies_above_its_kl(world: Path) -> None:
    """SFT at 0 nats and 4.4, r3 at 5.1 nats and 8.6: two corners of axes 0 to 6 and 4 to 10."""
    drawing = report(world).partition("<b>Gold against KL</b>")[2].partition("</svg>")[0]
    # Across from 38 (0) to 332 (6 nats); up from 170 (4) to 22 (10).
    assert 'cx="38.0" cy="160.1"' in drawing
    assert 'cx="287.9" cy="56.5"' in drawing
    assert drawing.count("<circle") == 1 + len(ROUNDS)


def best_of_n(text: str) -> str:
    """The page's section on best-of-n; empty where there is none."""
    return text.partition("<h2>Is PPO worth it?</h2>")[2].partition("</section>")[0]


def test_whether_ppo_is_worth_it_stands_in_one_sentence(world: Path) -> None:
    """r3 at 4.5 + 3 x 1.4; of SFT the best of 64 by its reward model at 4.4 + 6 x 0.6."""
    assert (
        "Yes: one response of r3 reaches gold 8.70, the best of 64 of SFT by the same reward model "
        "8.00; the difference is +0.70 [+0.20, +1.20] on 512 prompts."
    ) in best_of_n(report(world))


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.2, 0.4, "Undecided"), (-0.8, -0.2, "No"), (0.0, 1.0, "Und")]
)
def test_ppo_is_only_worth_it_where_the_whole_interval_says_so(
    tmp_path: Path, low: float, high: float, verdict: str
) -> None:
    write_world(tmp_path)
    path = tmp_path / "results/best_of_n/metrics.json"
    record = json.loads(path.read_text())
    record["gain"] = {"mean": (low + high) / 2, "low": low, "high": high, "n": 128}
    path.write_text(json.dumps(record))
    assert f'<p class="lead">{verdict}' in best_of_n(report(tmp_path))


def test_best_of_n_has_a_row_for_each_n_and_one_of_the_policies(world: Path) -> None:
    table = best_of_n(report(world)).partition("<tbody>")[2]
    rows = re.findall(r"<tr[^>]*><th>(.*?)</th><td>(.*?)</td>(.*?)</tr>", table, re.S)
    bounds = [(name, kl) for name, kl, _ in rows]
    assert bounds == [("1", "≤ 0.00"), ("8", "≤ 1.20"), ("64", "≤ 3.17"), ("PPO", "5.10")]
    means = re.findall(r"<b>(.*?)</b>", rows[2][2])
    # Gold by each round's reward model; win rate and proxy by that of the last round.
    assert means == ["5.60", "6.80", "8.00", "0.860", "2.40"]
    assert re.findall(r"<b>(.*?)</b>", rows[3][2])[:3] == ["5.90", "7.30", "8.70"]


def test_best_of_n_lies_above_the_bound_of_its_kl(world: Path) -> None:
    """Axes of gold from 4 to 10 (170 up to 22) and of KL from 0 to 6 (38 to 332)."""
    drawing = best_of_n(report(world)).partition("Gold against KL")[2].partition("</svg>")[0]
    lines = re.findall(r'<polyline class="line" points="([^"]*)"', drawing)
    assert len(lines) == len(ROUNDS)
    x, y = map(float, lines[-1].split()[-1].split(","))
    assert x == pytest.approx(38 + 294 * 3.1745 / 6, abs=0.06)
    assert y == pytest.approx(170 - 148 * (8.0 - 4) / 6, abs=0.06)
    assert "best of n, r3, n = 64: gold 8.00, KL at most 3.17" in drawing


def test_without_gold_best_of_n_says_that_the_reward_model_judges(tmp_path: Path) -> None:
    write_world(tmp_path, gold=False)
    section = best_of_n(report(tmp_path))
    assert "No, as far as the reward model that both were chosen by can tell" in section
    assert "This data has no rubric" in section
    assert section.count("<svg") == 1
    assert "win rate" not in section.partition("<table>")[2]


def test_before_best_of_n_has_run_the_page_does_without_it(tmp_path: Path) -> None:
    write_world(tmp_path)
    (tmp_path / "results/best_of_n/metrics.json").unlink()
    assert best_of_n(report(tmp_path)) == ""


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


def test_a_round_that_is_no_better_is_named_in_the_headline_and_marked_in_the_table(
    tmp_path: Path,
) -> None:
    write_world(tmp_path)
    metrics = tmp_path / "results/evaluate/r3/metrics.json"
    record = json.loads(metrics.read_text())
    record["win_rate_vs_previous"] = {"mean": 0.51, "low": 0.47, "high": 0.55, "n": 512}
    metrics.write_text(json.dumps(record))
    text = report(tmp_path)
    header = text.partition("<header>")[2].partition("</header>")[0]
    assert "r3 is no better than the policy it started from" in header
    assert text.count('class="final contradicts"') == 1


@pytest.mark.parametrize("highest", [0.0008, 0.012, 1234.5], ids=["small", "usual", "large"])
def test_no_label_of_an_axis_is_cut_off_at_the_left(tmp_path: Path, highest: float) -> None:
    """A digit is at most 6.4 wide at the 10.5 pixels of these labels."""
    write_world(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        history.write_text(f"step,policy/clip_fraction\n0,0\n1,{highest}\n")
    text = report(tmp_path).partition("<b>Clip fraction</b>")[2].partition("</svg>")[0]
    labels = re.findall(r'<text class="tick end" x="(\d+)"[^>]*>([^<]+)', text)
    assert len(labels) > 2
    assert all(int(x) - 6.4 * len(label) >= 0 for x, label in labels), labels


@pytest.mark.parametrize("shares", [(0, 0), (0.2, 0.25)], ids=["always zero", "never zero"])
def test_the_axis_of_the_clip_fraction_begins_at_zero(
    tmp_path: Path, shares: tuple[float, float]
) -> None:
    write_world(tmp_path)
    for key in ROUNDS:
        history = tmp_path / "results/ppo" / key / "history.csv"
        history.write_text(f"step,policy/clip_fraction\n0,{shares[0]}\n1,{shares[1]}\n")
    text = report(tmp_path).partition("<b>Clip fraction</b>")[2].partition("</svg>")[0]
    labels = re.findall(r'<text class="tick end"[^>]*>([^<]+)', text)
    assert min(map(float, labels)) == 0


def test_each_round_has_a_reliability_plot_with_a_dot_where_the_bin_lies(world: Path) -> None:
    text = report(world)
    drawings = re.findall(r"<b>Accuracy by confidence, (r\d)</b> 500 held-out pairs", text)
    assert drawings == list(ROUNDS)
    # Across from 38 (one half) to 332 (1); up from 170 (0.4) to 22 (1).
    assert text.count('cx="96.8" cy="145.3"') == len(ROUNDS)
    assert text.count('cx="273.2" cy="71.3"') == len(ROUNDS)
    assert text.count("confidence 0.90, accuracy 0.80 (from 0.70 to 0.85), 380 pairs") == len(
        ROUNDS
    )


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
    assert "89 % of responses beat" in text
    assert "<b>Gold score</b>" not in text
    # Of best-of-n the proxy is left: one line of n, and one of PPO.
    assert Page(text).tags.count("polyline") == 6 * len(ROUNDS) + 2 + 2
    assert "Gold against KL" not in text


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


def test_the_rounds_lie_one_after_the_other_on_the_axis_of_steps(world: Path) -> None:
    curves = read_curves(world, ROUNDS)
    assert curves.spans == (("r1", 0.0, 24.0), ("r2", 24.0, 48.0), ("r3", 48.0, 72.0))
    steps = [step for step, _ in curves.by_metric["objective/kl"].points]
    assert steps == [float(step) for step in range(72)]
    variance = curves.by_metric["value/explained_variance"].points
    assert len(variance) == 69  # empty at the first step of each round


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


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (4.1, 8.7, [4.0, 6.0, 8.0, 10.0]),
        (-0.01, 5.9, [0.0, 2.0, 4.0, 6.0]),
        (-0.03, 0.11, [-0.05, 0.0, 0.05, 0.1, 0.15]),
        (3.0, 3.0, [2.5, 2.75, 3.0, 3.25, 3.5]),
    ],
)
def test_ticks_are_round_numbers_that_cover_the_range(
    low: float, high: float, expected: list[float]
) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


def test_the_page_shows_the_loss_of_sft_on_held_out_demonstrations(tmp_path: Path) -> None:
    write_world(tmp_path, gold=False)
    assert "held-out demonstrations" not in report(tmp_path)
    heldout = {"demonstrations": 40, "base": 1.1614, "sft": 0.7792}
    (tmp_path / "results/sft/metrics.json").write_text(json.dumps({"heldout": heldout}))
    shown = "SFT on 40 held-out demonstrations: 1.161 → 0.779 nats a token."
    assert shown in report(tmp_path)

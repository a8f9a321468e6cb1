"""Nothing that somebody writes into a prompt, an answer, a name or a reason becomes active."""

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from feedback.formats.exchange import to_csv, to_trl
from feedback.formats.label_studio import to_tasks
from feedback.judgments import to_lines
from feedback.page.rendering import text_html
from feedback.store import submissions
from feedback.store.assignments import ServeParams, next_task
from preferences.records import Judgment, text_hash
from tasks.report import build_report
from tests.unit.tasks.reporting.report_world import chained, write_world

_spec = importlib.util.spec_from_file_location("payloads", Path(__file__).with_name("payloads.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
PAYLOADS: list[str] = _module.PAYLOADS

ACTIVE = (
    "script, iframe, object, embed, svg, math, img, image, video, audio, link, meta, base, style, "
    "form, input, select, textarea, button, a[href], template, marquee, [autofocus], [style]"
)
FIND_ACTIVE = f"""
    const boxes = [...document.querySelectorAll(".text, main table, .who, #message p")];
    const handlers = (node) => [...node.attributes].some((one) => one.name.startsWith("on"));
    return boxes.flatMap((box) => [...box.querySelectorAll("*")])
      .filter((node) => node.matches(`{ACTIVE}`) || handlers(node))
      .filter((node) => !node.matches("button[data-person], button[data-export]"))
      .map((node) => node.outerHTML);
"""


class Nodes(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def test_there_are_sixty_different_payloads() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) == 60


@pytest.mark.parametrize("number", range(60))
def test_a_payload_becomes_plain_tags_without_attributes(number: int) -> None:
    for tag, attributes in Nodes(text_html(PAYLOADS[number])).found:
        assert tag in {"p", "pre", "code", "blockquote", "em", "strong", "br", "h1", "h2"}
        assert attributes == []


def test_no_payload_becomes_active_on_the_labelling_page(
    browser: Any, site: Any, pair_of: Callable[..., Any], picture: Callable[[str], None]
) -> None:
    site.publish(
        [pair_of(f"{n} {text}", f"left {text}", f"right {text}") for n, text in enumerate(PAYLOADS)]
    )
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={site.token('<b onclick=1>ana</b>')}")
    csrf = "return document.querySelector('meta[name=csrf]')?.content"
    seen = 0
    for number in range(60):
        _wait(
            browser,
            lambda b: b.execute_script(
                "return document.body && !document.body.ariaBusy && "
                "document.body.dataset.unread === undefined && " + READY
            ),
        )
        assert browser.execute_script(FIND_ACTIVE) == []
        seen += 1
        if number == 0:
            assert browser.execute_script(csrf)
            picture("payload")
        browser.execute_script("document.getElementById('raw').click()")
        assert browser.execute_script(FIND_ACTIVE) == []
        browser.execute_script("document.getElementById('raw').click()")
        before = len(site.labels())
        browser.execute_script("document.querySelector('[data-choice=tie]').click()")
        _wait(browser, lambda _, before=before: len(site.labels()) > before)
    assert seen == 60
    assert browser.execute_script("return window.__owned") is None


READY = "['work', 'message'].some(id => document.getElementById(id)?.hidden === false)"
"""The page shows a pair or says something; not so while the sign-in page is still open."""


def test_no_payload_becomes_active_on_the_overview(
    browser: Any, site: Any, pair_of: Callable[..., Any]
) -> None:
    site.publish([pair_of(f"prompt {n}", "x", "y") for n in range(60)])
    for text in PAYLOADS:
        name = "".join(one for one in text if one.isprintable())[:64]
        site.token(name)
        _skip_once(site, name, reason=text)
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={site.token('lea', 'lead')}")
    _wait(browser, lambda b: b.current_url == f"{site.address}/")
    browser.get(f"{site.address}/lead")
    assert len(browser.find_elements("css selector", "[data-person]")) > 30
    assert browser.execute_script(FIND_ACTIVE) == []
    assert browser.execute_script("return window.__owned") is None


def hostile_report(root: Path) -> Path:
    """The pipeline's report, with a payload for every sampled prompt and answer."""
    write_world(root, ("r1",))
    rows = [
        {"prompt_id": f"p{n}", "prompt": f"{n} {text}", "sft": text, "response": f"{text} {n}",
         "sft_finished": True, "finished": False,
         "gold_sft": 4.0, "gold": n / 10, "score": 1.25}
        for n, text in enumerate(PAYLOADS)
    ]  # fmt: skip
    (root / "results/evaluate/r1/samples.jsonl").write_text(to_lines(rows), encoding="utf-8")
    build_report(root, chained(("r1",)), "r1", root, seed=0, samples=len(rows))
    return root / "index.html"


def test_no_payload_becomes_a_tag_of_the_report(tmp_path: Path) -> None:
    html = hostile_report(tmp_path).read_text(encoding="utf-8")
    assert html.count("__owned") >= 60, "the payloads are not in the report"
    for tag, attributes in Nodes(html).found:
        assert tag not in {"script", "iframe", "object", "embed", "img", "form", "base"}
        for name, value in attributes:
            assert not name.startswith("on")
            assert "__owned" not in (value or "")


def test_no_payload_becomes_active_in_the_report(browser: Any, tmp_path: Path) -> None:
    browser.get(hostile_report(tmp_path).as_uri())
    assert len(browser.page_source) > 10_000
    assert browser.execute_script("return window.__owned") is None
    assert browser.execute_script("return document.scripts.length") == 0


def test_exports_keep_payloads_as_text(pair_of: Callable[..., Any]) -> None:
    pairs = [pair_of(f"{n} {text}", text, f"{text}.") for n, text in enumerate(PAYLOADS)]
    judgments = [
        Judgment.of(
            pair,
            annotator_id="ana",
            kind="human",
            annotator_version="g1",
            choice="a",
            shown_order="AB",
            answer_a=text_hash(pair.response_a),
            reason=pair.response_a,
        )
        for pair in pairs
    ]
    by_id = {pair.pair_id: pair for pair in pairs}
    assert [row["chosen"] for row in to_trl(judgments, by_id)] == PAYLOADS
    tasks = json.loads(json.dumps(to_tasks(pairs, judgments)))
    assert [{task["data"]["left"], task["data"]["right"]} for task in tasks] == [
        {text, f"{text}."} for text in PAYLOADS
    ]
    (_, *table) = csv.reader(io.StringIO(to_csv(judgments, by_id), newline=""))
    for row, text in zip(table, PAYLOADS, strict=True):
        assert row[4] == row[6]
        assert row[4] in (text, f"'{text}")
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


def test_a_script_that_got_into_the_page_would_not_run(browser: Any, site: Any) -> None:
    browser.get(f"{site.address}/login")
    browser.execute_script(
        """
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.__owned=1'>");
        const script = document.createElement("script");
        script.textContent = "window.__owned = 2";
        document.body.append(script);
        """
    )
    _wait(browser, lambda b: b.execute_script("return document.images[0].complete"))
    assert browser.execute_script("return window.__owned") is None


def _skip_once(site: Any, name: str, reason: str) -> None:
    with site.database.writing() as connection:
        task = next_task(connection, name, ServeParams(gold_rate=0, repeat_rate=0))
        if task is None:
            return
        given = submissions.Submission(
            assignment_id=task.assignment_id,
            choice="skip",
            strength=None,
            reason=reason,
            visible_ms=1,
            key="k" * 8,
            guideline_hash="g",
        )
        submissions.submit(connection, name, given)


def _wait(browser: Any, condition: Callable[[Any], Any]) -> None:
    ui = pytest.importorskip("selenium.webdriver.support.ui")
    ui.WebDriverWait(browser, 15, poll_frequency=0.02).until(condition)

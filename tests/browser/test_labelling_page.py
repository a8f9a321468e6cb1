"""A person at the labelling page, by keyboard and by mouse, whatever happens meanwhile."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from feedback.judgments import to_lines
from feedback.store import accounts
from tests.browser.labelling import (
    Keys,
    answer,
    by_id,
    press,
    ready,
    said,
    shown,
    sign_in,
    twelve,
    wait_for,
)


def test_a_response_that_was_cut_says_so_below_its_text(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish([replace(pair_of("Where is it?", "good, it is on", "bad."), finished_a=False)])
    sign_in(browser, site)
    cut, other = (
        ("left", "right") if by_id(browser, "left").text == "good, it is on" else ("right", "left")
    )
    assert by_id(browser, f"{cut}-cut").is_displayed()
    assert not by_id(browser, f"{other}-cut").is_displayed()
    press(browser, Keys.ARROW_LEFT)


def test_a_whole_session_by_keyboard(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None]
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    picture("keyboard-1-first-pair")
    good_on_left = by_id(browser, "left").text.startswith("good")
    press(browser, Keys.ARROW_LEFT)
    assert "chosen" in by_id(browser, "left-card").get_attribute("class")
    picture("keyboard-2-left-chosen")
    answer(browser, site, "3")
    assert site.labels() == [("ana", "a" if good_on_left else "b", 3, None)]

    good_on_left = by_id(browser, "left").text.startswith("good")
    answer(browser, site, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, "1")
    assert site.labels()[-1][1:3] == ("b" if good_on_left else "a", 1)

    answer(browser, site, Keys.ARROW_RIGHT, Keys.ENTER)
    assert site.labels()[-1][2] is None

    answer(browser, site, "t")
    answer(browser, site, "b")
    assert [row[1] for row in site.labels()[-2:]] == ["tie", "both_bad"]

    press(browser, "s")
    wait_for(browser, lambda b: by_id(b, "skip-dialog").get_property("open"))
    picture("keyboard-3-skip")
    answer(browser, site, "2")
    assert site.labels()[-1][1:] == ("skip", None, "unreadable")

    press(browser, "s")
    by_id(browser, "reason").send_keys("needs 2 words of Greek: γειά")
    answer(browser, site, Keys.ENTER)
    assert site.labels()[-1][3] == "needs 2 words of Greek: γειά"

    undone_from = shown(browser)
    answer(browser, site, "u")
    assert site.labels()[-1][1] == "withdrawn"
    assert shown(browser) != undone_from
    picture("keyboard-4-undone")
    answer(browser, site, "t")
    assert shown(browser) == undone_from

    while not said(browser):
        answer(browser, site, Keys.ARROW_LEFT, "2")
    assert "Nothing left for you" in said(browser)
    picture("keyboard-5-done")
    standing = [row for row in site.labels() if row[1] != "withdrawn"]
    assert len(standing) == 12 + 1


def test_a_whole_session_by_mouse(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None]
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site, "ben", "lead")

    def click(*selectors: str) -> None:
        before = len(site.labels())
        for selector in selectors:
            browser.find_element("css selector", selector).click()
        wait_for(browser, lambda _: len(site.labels()) > before)
        wait_for(browser, ready)

    click('[data-choice="right"]', '[data-strength="4"]')
    click('[data-choice="tie"]')
    click('[data-choice="both_bad"]')
    click('[data-choice="skip"]', '[data-reason="harmful"]')
    click("#undo")
    click('[data-choice="left"]', '[data-strength="1"]')
    choices = [(row[1], row[2], row[3]) for row in site.labels()]
    assert choices[0][0] in ("a", "b")
    assert choices[0][1] == 4
    assert choices[1:5] == [
        ("tie", None, None),
        ("both_bad", None, None),
        ("skip", None, "harmful"),
        ("withdrawn", None, None),
    ]
    assert choices[5][1] == 1
    browser.find_element("id", "show-guidelines").click()
    assert "How to compare two responses" in by_id(browser, "guidelines").text
    assert "Version" in by_id(browser, "guidelines").text
    picture("mouse-1-guidelines")
    while not said(browser):
        click('[data-choice="left"]', '[data-strength="2"]')
    browser.find_element("link text", "Overview").click()
    wait_for(browser, lambda b: "Krippendorff" in b.page_source)
    assert "12 of 12" in browser.find_element("tag name", "main").text
    picture("mouse-2-overview")


def test_keys_do_nothing_while_something_else_has_them(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    press(browser, "3", Keys.ENTER, Keys.CONTROL + "t")
    press(browser, "s")
    by_id(browser, "reason").send_keys("a b t u g")
    press(browser, Keys.ESCAPE)
    time.sleep(0.3)
    assert site.labels() == []
    assert not by_id(browser, "skip-dialog").get_property("open")


def test_a_reload_shows_the_same_pair_with_the_same_sides(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    before = (shown(browser), by_id(browser, "left").text)
    browser.refresh()
    wait_for(browser, lambda b: shown(b))
    assert (shown(browser), by_id(browser, "left").text) == before


def test_nothing_is_lost_when_the_server_dies_and_comes_back(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None]
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    port = int(site.address.rsplit(":", 1)[1])
    site.kill()
    press(browser, "t")
    wait_for(browser, lambda b: "Not saved yet" in by_id(b, "trouble").text)
    picture("server-away")
    assert shown(browser) == first
    site.start(port)
    wait_for(browser, lambda _: len(site.labels()) == 1)
    wait_for(browser, lambda b: shown(b) != first)
    assert [row[1] for row in site.labels()] == ["tie"]
    assert by_id(browser, "trouble").text == ""


def test_an_open_page_says_that_the_guidelines_have_changed(
    browser: Any, site: Any, pair_of: Any, tmp_path: Path
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    answer(browser, site, "t")
    assert not by_id(browser, "changed").is_displayed()
    other = tmp_path / "guidelines.md"
    other.write_text("Other rules.", encoding="utf-8")
    site.kill()
    site.start(int(site.address.rsplit(":", 1)[1]), "--guidelines", str(other))
    answer(browser, site, "t")
    assert by_id(browser, "changed").is_displayed()
    browser.refresh()
    wait_for(browser, lambda b: shown(b) and ready(b))
    assert not by_id(browser, "changed").is_displayed()


def test_an_answer_and_the_next_pair_cost_one_request(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    asked = "return performance.getEntriesByType('resource').map((one) => one.name)"
    before = browser.execute_script(asked)
    for _ in range(9):
        answer(browser, site, "t")
    after = browser.execute_script(asked)
    assert after[len(before) :] == [f"{site.address}/api/judgments"] * 9


def test_a_pause_is_shown_at_the_next_key_and_nothing_is_saved(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None]
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    answer(browser, site, "t")
    for key in ("t", "u"):
        with site.database.writing() as connection:
            accounts.pause(connection, "ana", "too many guesses")
        press(browser, key)
        wait_for(browser, lambda b: "You are paused" in said(b))
        picture(f"paused-{key}")
        assert "too many guesses" in said(browser)
        assert "you are paused: too many guesses" in by_id(browser, "trouble").text
        assert [row[1] for row in site.labels()] == ["tie"]
        with site.database.writing() as connection:
            accounts.resume(connection, "ana")
        browser.refresh()
        wait_for(browser, lambda b: not by_id(b, "work").get_property("hidden"))


@pytest.mark.long
def test_new_pairs_come_by_themselves_when_nothing_was_left(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish([pair_of("First.", "yes", "no")])
    sign_in(browser, site)
    answer(browser, site, "t")
    assert "Nothing left for you" in said(browser)
    site.publish([pair_of("First.", "yes", "no"), pair_of("Second.", "yes", "no")])
    wait_for(browser, lambda b: shown(b) == "Second.")
    assert not said(browser)


def test_the_browser_has_nothing_to_complain_about(browser: Any, site: Any, pair_of: Any) -> None:
    browser.get_log("browser")
    site.publish(twelve(pair_of))
    sign_in(browser, site, "lea", "lead")
    answer(browser, site, "t")
    browser.get(f"{site.address}/lead")
    entries = browser.get_log("browser")
    assert [one["message"] for one in entries if one["level"] in ("WARNING", "SEVERE")] == []


def test_a_file_too_large_is_said_to_be(browser: Any, site: Any, tmp_path: Path) -> None:
    sign_in(browser, site, "lea", "lead")
    file = tmp_path / "comparisons.jsonl"
    file.write_bytes(b" " * (16 * 2**20 + 1))
    browser.get(f"{site.address}/lead")
    for name, value in (("round", "r8"), ("file", str(file))):
        browser.find_element("name", name).send_keys(value)
    browser.find_element("css selector", "#publish button").click()
    wait_for(
        browser, lambda b: "python -m feedback publish takes larger" in by_id(b, "trouble").text
    )


def test_a_lead_publishes_and_exports_from_the_overview(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None], tmp_path: Path
) -> None:
    sign_in(browser, site, "lea", "lead")
    pairs = [replace(one, round="r7") for one in twelve(pair_of)]
    file = tmp_path / "comparisons.jsonl"
    file.write_text(to_lines([asdict(one) for one in pairs]), encoding="utf-8")
    browser.get(f"{site.address}/lead")
    for name, value in (("round", "r8"), ("file", str(file))):
        browser.find_element("name", name).send_keys(value)
    browser.find_element("css selector", "#publish button").click()
    wait_for(browser, lambda b: "expected 'r8'" in by_id(b, "trouble").text)
    field = browser.find_element("name", "round")
    field.clear()
    field.send_keys("r7")
    browser.find_element("css selector", "#publish button").click()
    wait_for(browser, lambda b: "12 pairs added" in by_id(b, "done").text)
    assert not by_id(browser, "trouble").is_displayed()
    browser.get(f"{site.address}/lead")
    picture("lead-publishes")
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    browser.find_element("css selector", "[data-form='label-studio']").click()
    exported = tmp_path / "r7-label-studio.json"
    wait_for(browser, lambda _: exported.exists())
    assert len(json.loads(exported.read_text(encoding="utf-8"))) == 12

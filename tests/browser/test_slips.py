"""Slips of a hand at the labelling page, and a sign-out that does not happen."""

import time
from typing import Any

import pytest

from tests.browser.labelling import (
    answer,
    by_id,
    fit,
    press,
    ready,
    shown,
    sign_in,
    twelve,
    wait_for,
)

chains = pytest.importorskip("selenium.webdriver.common.action_chains")


@pytest.mark.parametrize("choice", ["tie", "both_bad"])
def test_a_double_click_judges_one_pair(browser: Any, site: Any, pair_of: Any, choice: str) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    button = browser.find_element("css selector", f'[data-choice="{choice}"]')
    # Slower than the server replies, and faster than anybody reads the next pair.
    double = chains.ActionChains(browser, duration=0)
    double.move_to_element(button).click().pause(0.15).click().perform()
    wait_for(browser, lambda b: shown(b) not in ("", first))
    time.sleep(0.5)
    wait_for(browser, ready)
    assert [row[1] for row in site.labels()] == [choice]


@pytest.mark.parametrize("by", ["keys", "taps"])
def test_a_second_answer_before_anybody_can_have_read_the_pair_is_none(
    browser: Any, site: Any, pair_of: Any, by: str
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    # Each as soon as the next pair is there, which is the worst moment.
    browser.execute_script(
        """
        let first = document.getElementById("prompt").textContent;
        const again = by => {
          if (by === "keys") document.body.dispatchEvent(
            new KeyboardEvent("keydown", { key: "t", bubbles: true }));
          else document.querySelector("[data-choice=tie]").click();
        };
        new MutationObserver(() => setTimeout(() => {
          if (document.getElementById("prompt").textContent !== first) again(arguments[0]);
        }, 20)).observe(document.getElementById("prompt"), { childList: true });
        again(arguments[0]);
        """,
        by,
    )
    wait_for(browser, lambda _: site.labels())
    time.sleep(0.3)
    wait_for(browser, ready)
    assert [row[1] for row in site.labels()] == ["tie"]
    answer(browser, site, "b")
    assert [row[1] for row in site.labels()][:2] == ["tie", "both_bad"]


@pytest.mark.parametrize("choice", ["left", "right"])
@pytest.mark.parametrize("size", [(640, 360), (390, 844)])
def test_a_double_tap_on_a_side_rates_nothing(
    browser: Any, site: Any, pair_of: Any, size: tuple[int, int], choice: str
) -> None:
    """The strengths come above the choices; the choices must not move from under the finger."""
    site.publish(twelve(pair_of))
    try:
        fit(browser, *size)
        sign_in(browser, site)
        browser.execute_script("scrollTo(0, document.body.scrollHeight)")
        button = browser.find_element("css selector", f'[data-choice="{choice}"]')
        box = "return arguments[0].getBoundingClientRect().top"
        before = browser.execute_script(box, button)
        double = chains.ActionChains(browser, duration=0)
        double.move_to_element(button).click().pause(0.15).click().perform()
        assert browser.execute_script(box, button) == before
        assert "waiting" in by_id(browser, "strengths").get_attribute("class")
        time.sleep(0.3)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert site.labels() == []


def test_a_chosen_response_is_taken_back_and_sent_unrated_by_clicks_alone(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    left, unrated = (
        browser.find_element("css selector", one)
        for one in ('[data-choice="left"]', '[data-strength=""]')
    )
    left.click()
    assert left.get_attribute("aria-pressed") == "true"
    time.sleep(0.6)  # Not as the second click of a double click.
    left.click()
    assert left.get_attribute("aria-pressed") == "false"
    assert not unrated.is_enabled()
    browser.find_element("css selector", '[data-choice="right"]').click()
    unrated.click()
    wait_for(browser, lambda _: site.labels())
    ((_, choice, strength, _),) = site.labels()
    assert (choice in ("a", "b"), strength) == (True, None)


def test_a_double_click_on_undo_takes_one_answer_back(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    for _ in range(3):
        wait_for(browser, ready)
        before = shown(browser)
        by_id(browser, "work").find_element("css selector", '[data-choice="tie"]').click()
        wait_for(browser, lambda b, before=before: shown(b) not in ("", before))
    wait_for(browser, ready)
    before, button = shown(browser), by_id(browser, "undo")
    double = chains.ActionChains(browser, duration=0)
    double.move_to_element(button).click().pause(0.15).click().perform()
    wait_for(browser, lambda b: shown(b) not in ("", before))
    time.sleep(0.5)
    wait_for(browser, ready)
    assert [row[1] for row in site.labels()] == ["tie", "tie", "tie", "withdrawn"]


def test_who_could_not_be_signed_out_is_told_so(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    # As after signing in as somebody else in another tab.
    browser.execute_script(
        """
        const real = window.fetch;
        window.fetch = (url, options) => real(url, url !== "/api/logout" ? options
          : { ...options, headers: { ...options.headers, "X-CSRF-Token": "old" } });
        """
    )
    by_id(browser, "logout").click()
    wait_for(browser, lambda b: "You are still signed in" in by_id(b, "trouble").text)
    assert "this page is out of date" in by_id(browser, "trouble").text
    assert browser.current_url == f"{site.address}/"


def test_a_reason_that_begins_with_a_digit_is_written_and_not_chosen(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    first = shown(browser)
    press(browser, "s")
    by_id(browser, "reason").click()
    chains.ActionChains(browser).send_keys("2 facts are wrong").perform()
    assert by_id(browser, "reason").get_property("value") == "2 facts are wrong"
    by_id(browser, "skip-send").click()
    wait_for(browser, lambda b: shown(b) not in ("", first))
    assert [(row[1], row[-1]) for row in site.labels()] == [("skip", "2 facts are wrong")]


def test_the_enter_that_ends_the_composing_of_a_word_sends_nothing(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    press(browser, "s")
    by_id(browser, "reason").send_keys("にほ")
    browser.execute_script(
        """
        const enter = { key: "Enter", isComposing: true, bubbles: true, cancelable: true };
        document.getElementById("reason").dispatchEvent(new KeyboardEvent("keydown", enter));
        """
    )
    assert browser.execute_script("return document.getElementById('skip-dialog').open")
    assert site.labels() == []

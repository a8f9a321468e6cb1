"""The labelling page shows what was written, and keeps it in view."""

from typing import Any

from tests.browser.labelling import (
    Keys,
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

POEM = "Roses are red\nViolets are blue"
WIDE = "```\n" + "wide " * 300 + "\n```"


def test_lines_stay_lines_and_plain_shows_conversations_too(
    browser: Any, site: Any, pair_of: Any
) -> None:
    talk = [{"role": "user", "content": f"# {POEM}"}, {"role": "assistant", "content": "*Nice*"}]
    site.publish([pair_of(talk, POEM, f"{POEM}\nSugar is sweet")])
    sign_in(browser, site)

    assert "Roses are red\nViolets are blue" in by_id(browser, "left").text
    assert by_id(browser, "prompt").text == "user\nRoses are red\nViolets are blue\nassistant\nNice"

    press(browser, "r")
    assert by_id(browser, "prompt").text == f"[user]\n# {POEM}\n\n[assistant]\n*Nice*"


def test_nothing_to_see_is_said(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish([pair_of("Say nothing.", " \n", "#")])
    sign_in(browser, site)
    hints = {by_id(browser, f"{side}-empty").text for side in ("left", "right")}
    assert hints == {
        "The response is empty.",
        "Nothing but marks of formatting; Plain shows them.",
    }

    press(browser, "r")
    assert {by_id(browser, f"{side}-empty").text for side in ("left", "right")} == {
        "The response is empty.",
        "",
    }


def test_guidelines_that_cover_the_pair_have_the_keys(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    try:
        fit(browser, 640, 360)
        sign_in(browser, site)
        press(browser, "g")
        assert browser.switch_to.active_element.get_attribute("id") == "close-guidelines"
        press(browser, Keys.PAGE_DOWN)
        wait_for(browser, lambda b: by_id(b, "guidelines").get_property("scrollTop") > 0)
        press(browser, "t", Keys.ARROW_LEFT)
        press(browser, Keys.TAB, Keys.TAB, Keys.TAB)
        covered = "return arguments[0].contains(document.activeElement)"
        for beneath in ("header", "main"):
            node = browser.find_element("tag name", beneath)
            assert not browser.execute_script(covered, node)
        browser.find_element("tag name", "body").send_keys(Keys.ESCAPE)
        assert not by_id(browser, "guidelines").is_displayed()
        assert site.labels() == []
        answer(browser, site, "t")
        # Beside the pair, on a wider screen, they take nothing.
        press(browser, "g")
        fit(browser, 1280, 900)
        answer(browser, site, "b")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [row[1] for row in site.labels()] == ["tie", "both_bad"]


def test_magnified_the_buttons_leave_the_texts_their_room(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish([pair_of("Long.", "line\n\n" * 200, "other")])
    try:
        fit(browser, 320, 256)  # 1280 x 1024 at 400 %.
        sign_in(browser, site)
        press(browser, Keys.ARROW_LEFT)
        by_id(browser, "prompt-title").send_keys(Keys.HOME)
        top = browser.execute_script(
            "return document.elementFromPoint(160, 250).closest('.controls') === null"
        )
        assert top
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_chosen_side_is_seen_without_colours(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
        press(browser, Keys.ARROW_LEFT)
        for marked in ("#left-card", '[data-choice="left"]'):
            node = browser.find_element("css selector", marked)
            assert node.value_of_css_property("outline-style") == "solid"
        other = by_id(browser, "right-card")
        assert other.value_of_css_property("outline-style") == "none"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_arrows_scroll_wide_code_that_has_the_focus(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish([pair_of("Code.", WIDE, f"{WIDE}\n\ntoo")])
    sign_in(browser, site)
    code = browser.find_element("css selector", "#left pre")
    browser.execute_script("arguments[0].tabIndex = 0; arguments[0].focus()", code)
    press(browser, Keys.ARROW_RIGHT)
    wait_for(browser, lambda _: code.get_property("scrollLeft") > 0)
    assert "chosen" not in by_id(browser, "right-card").get_attribute("class")

    browser.execute_script("arguments[0].blur()", code)
    press(browser, Keys.ARROW_RIGHT)
    assert "chosen" in by_id(browser, "right-card").get_attribute("class")
    assert shown(browser) == "Code."
    assert ready(browser)

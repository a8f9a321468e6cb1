"""A person at the labelling page: by keyboard, by mouse, on a phone, in the dark."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from feedback.judgments import to_lines
from feedback.store import accounts

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui")
Keys = keys.Keys

ARABIC = "\u0645\u0631\u062d\u0628\u0627\u060c \u0623\u064a\u0646 \u0637\u0644\u0628\u064a\u061f"


def wait_for(browser: Any, condition: Callable[[Any], Any], seconds: float = 120) -> Any:
    return waiting.WebDriverWait(browser, seconds, poll_frequency=0.02).until(condition)


def by_id(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def sign_in(browser: Any, site: Any, name: str = "ana", role: str = "annotator") -> None:
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={site.token(name, role)}")
    wait_for(browser, lambda b: b.current_url == f"{site.address}/")
    wait_for(browser, lambda b: not by_id(b, "work").get_property("hidden") or said(b))


def said(browser: Any) -> str:
    return (
        "" if by_id(browser, "message").get_property("hidden") else by_id(browser, "message").text
    )


def press(browser: Any, *pressed: str) -> None:
    for key in pressed:
        browser.switch_to.active_element.send_keys(key)


def ready(browser: Any) -> bool:
    return browser.find_element("tag name", "body").get_attribute("aria-busy") is None


def answer(browser: Any, site: Any, *pressed: str) -> None:
    """Presses keys that end in a saved label and waits for it and for the next pair."""
    before = len(site.labels())
    press(browser, *pressed)
    wait_for(browser, lambda _: len(site.labels()) > before)
    wait_for(browser, ready)


def shown(browser: Any) -> str:
    return str(by_id(browser, "prompt").text)


def twelve(pair_of: Any) -> list[Any]:
    return [
        pair_of(
            f"Request {n}: where is my order?", f"good {n} is on its way.", f"bad {n}. Go away."
        )
        for n in range(12)
    ]


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


LONG = "\n\n".join(f"Paragraph {n}. " + "many words " * 40 for n in range(30))
CODE = (
    "Use this:\n\n```python\ndef f(x):\n    return '<b>' + x * 200  # "
    + "long " * 60
    + "\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"
)


@pytest.mark.parametrize(
    ("name", "size"), [("desk", (1280, 900)), ("phone", (390, 844)), ("narrow", (320, 640))]
)
def test_long_texts_code_and_right_to_left_fit_every_screen(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None], name: str, size: Any
) -> None:
    pairs = [
        pair_of("Long.", LONG, "Short."),
        pair_of("Code, please.", CODE, "`x`" * 400),
        pair_of(ARABIC, f"{ARABIC}\n\nabc 123", "w" * 3000),
    ]
    site.publish(pairs)
    sign_in(browser, site)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500},
    )
    try:
        for number in range(3):
            # The page itself never scrolls sideways; wide code scrolls in its box.
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= size[0], shown(browser)
            if shown(browser) == ARABIC:
                box = browser.find_element("css selector", "#prompt p")
                assert box.value_of_css_property("unicode-bidi") == "plaintext"
            picture(f"{name}-{number}")
            press(browser, Keys.ARROW_RIGHT)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= size[0]
            picture(f"{name}-{number}-chosen")
            answer(browser, site, "t")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def on_a_phone(browser: Any) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_a_phone_shows_every_line_of_a_text_and_the_guidelines_over_it(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None]
) -> None:
    lines = ["Level one", "Level two", "plain", "bold", "item", "cell", "code()", "quoted"]
    text = (
        "# Level one\n\n## Level two\n\nplain **bold**\n\n1. item\n\n| cell |\n|---|\n| 1 |\n\n"
        "```\ncode()\n```\n\n> quoted"
    )
    site.publish([pair_of("# Level one\n\nplain", text, f"{text} too")])
    try:
        on_a_phone(browser)
        sign_in(browser, site)
        for part in ("left", "right"):
            # What is there to be seen, not what is in the document.
            assert [line for line in lines if line not in by_id(browser, part).text] == []
        assert "Level one" in by_id(browser, "prompt").text
        by_id(browser, "show-guidelines").click()
        assert "How to compare two responses" in by_id(browser, "guidelines").text
        top = browser.execute_script(
            "return document.elementFromPoint(195, 300).closest('#guidelines') !== null"
        )
        assert top
        picture("phone-guidelines")
        by_id(browser, "close-guidelines").click()
        assert not by_id(browser, "guidelines").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("phone", [False, True])
def test_the_buttons_stay_where_they_are(
    browser: Any, site: Any, pair_of: Any, phone: bool
) -> None:
    site.publish([pair_of("Short.", "yes", "no"), pair_of("Long.", LONG, "Short.")])
    places = set()

    def places_now() -> Any:
        buttons = browser.find_elements("css selector", "[data-choice]")
        return tuple((one.rect["x"], _on_screen(browser, one)) for one in buttons)

    try:
        if phone:
            on_a_phone(browser)
        sign_in(browser, site)
        for _ in range(2):
            places.add(places_now())
            press(browser, Keys.ARROW_LEFT)
            places.add(places_now())
            answer(browser, site, "t")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    # A scroll bar beside a long text moves them sideways by half its width.
    tops = {tuple(round(y) for _, y in place) for place in places}
    assert len(tops) == 1
    for button in zip(*places, strict=True):
        xs = [x for x, _ in button]
        assert max(xs) - min(xs) <= 10


def _on_screen(browser: Any, node: Any) -> float:
    return float(browser.execute_script("return arguments[0].getBoundingClientRect().y", node))


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


def contrast(first: str, second: str) -> float:
    """WCAG 2.1 contrast ratio of two colours as the browser writes them."""

    def luminance(colour: str) -> float:
        parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read(
    browser: Any, site: Any, pair_of: Any, picture: Callable[[str], None], theme: str
) -> None:
    site.publish(twelve(pair_of))
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": theme}]},
    )
    sign_in(browser, site)
    press(browser, "g", Keys.ARROW_LEFT)
    picture(f"theme-{theme}")
    colours = browser.execute_script(
        """
        const ground = (node) => {
          for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") return colour;
          }
          return "rgb(255, 255, 255)";
        };
        return [...document.querySelectorAll("h1, h2, p, li, button, kbd, span, td, th")]
          .filter((node) => node.offsetParent && node.textContent.trim())
          .map((node) =>
            [node.textContent.trim().slice(0, 30), getComputedStyle(node).color, ground(node)]);
        """
    )
    assert len(colours) > 40
    faint = [
        (text, contrast(ink, page)) for text, ink, page in colours if contrast(ink, page) < 4.5
    ]
    assert faint == []


def test_a_person_who_cannot_see_the_page_can_use_it(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    unnamed = browser.execute_script(
        """
        const parts = "button, input, textarea, progress, section, aside, dialog, nav";
        return [...document.querySelectorAll(parts)]
          .filter((node) => !node.textContent.trim() && !node.labels?.length
            && !node.getAttribute("aria-label") && !node.getAttribute("aria-labelledby"))
          .map((node) => node.outerHTML);
        """
    )
    assert unnamed == []
    assert browser.switch_to.active_element.get_attribute("id") == "prompt-title"
    press(browser, Keys.ARROW_LEFT)
    assert "Response 1 chosen" in by_id(browser, "live").get_property("textContent")
    answer(browser, site, "2")
    assert "Saved" in by_id(browser, "live").get_property("textContent")
    assert browser.switch_to.active_element.get_attribute("id") == "prompt-title"
    reached = set()
    for _ in range(25):
        press(browser, Keys.TAB)
        focused = browser.switch_to.active_element
        reached.add(focused.get_attribute("data-choice") or focused.get_attribute("id"))
        if focused.tag_name == "button":
            assert focused.value_of_css_property("outline-style") == "solid"
    assert {"left", "right", "tie", "both_bad", "skip", "undo", "show-guidelines"} <= reached


def test_the_browser_has_nothing_to_complain_about(browser: Any, site: Any, pair_of: Any) -> None:
    browser.get_log("browser")
    site.publish(twelve(pair_of))
    sign_in(browser, site, "lea", "lead")
    answer(browser, site, "t")
    browser.get(f"{site.address}/lead")
    entries = browser.get_log("browser")
    assert [one["message"] for one in entries if one["level"] in ("WARNING", "SEVERE")] == []


def tell(browser: Any) -> str:
    error = by_id(browser, "error")
    return str(error.text) if error.is_displayed() else ""


def type_token(browser: Any, token: str) -> None:
    field = by_id(browser, "token")
    field.clear()
    field.send_keys(token, Keys.ENTER)


def test_who_guesses_is_told_how_long_to_wait(
    browser: Any, site: Any, picture: Callable[[str], None]
) -> None:
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login")
    type_token(browser, "guess")
    wait_for(browser, tell)
    assert tell(browser) == "Unknown token; ask for a new one."
    for _ in range(12):
        type_token(browser, "guess")
        time.sleep(0.1)
    wait_for(browser, lambda b: tell(b).startswith("Too many wrong tokens. Try again in "))
    seconds = int(tell(browser).split(" in ")[1].split()[0])
    assert 1 <= seconds <= 60
    picture("guesses")


def test_who_comes_with_an_expired_token_is_told_so(browser: Any, site: Any) -> None:
    token = site.token("ana")
    with site.database.writing() as connection:
        connection.exec_driver_sql("UPDATE annotators SET token_expires_ms = 1700000000000")
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={token}")
    wait_for(browser, tell)
    assert tell(browser) == "Your token expired on 2023-11-14; ask for a new one."


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

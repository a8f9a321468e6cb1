"""The labelling page can be read and used on any screen, in the dark, and without seeing it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.labelling import Keys, answer, by_id, press, shown, sign_in, twelve

ARABIC = "\u0645\u0631\u062d\u0628\u0627\u060c \u0623\u064a\u0646 \u0637\u0644\u0628\u064a\u061f"
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


def test_the_overview_fits_a_phone(browser: Any, site: Any, pair_of: Any) -> None:
    """Tables scroll in their boxes; the names of numbers leave room for the numbers."""
    site.publish([pair_of("Where is it?", "Here.", "There.", "a-round-with-a-long-name")])
    sign_in(browser, site, "lea", "lead")
    browser.get(f"{site.address}/lead")
    on_a_phone(browser)
    try:
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        places = "return [...document.querySelectorAll('dd')].map(d => d.getBoundingClientRect().x)"
        values = browser.execute_script(places)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 390
    assert len(values) == 4
    assert max(values) <= 390 - 60, "no room for a number of six digits"


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

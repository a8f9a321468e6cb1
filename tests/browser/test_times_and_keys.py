"""What the labelling page measures, keys that are held or shifted, and the lead's own buttons."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feedback.judgments import to_lines
from tests.browser.labelling import answer, by_id, press, ready, shown, sign_in, twelve, wait_for


def rows(site: Any, query: str) -> list[tuple[Any, ...]]:
    with site.database.reading() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def clock_of(browser: Any) -> Callable[[float, str], None]:
    """Stops the page's clock; the function lets milliseconds pass, then shows or hides the page."""
    browser.execute_script(
        """
        window.clock = performance.now();
        performance.now = () => window.clock;
        window.state = "visible";
        Object.defineProperty(document, "visibilityState", { get: () => window.state });
        """
    )

    def after(milliseconds: float, state: str) -> None:
        browser.execute_script(
            """
            window.clock += arguments[0];
            window.state = arguments[1];
            document.dispatchEvent(new Event("visibilitychange"));
            """,
            milliseconds,
            state,
        )

    return after


def test_the_time_of_an_answer_is_that_for_which_its_pair_could_be_seen(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    after = clock_of(browser)
    answer(browser, site, "t")
    # In all less than the 400 ms before which no answer is taken: the server believes no more.
    after(100, "hidden")
    after(60_000, "visible")
    after(50, "visible")
    answer(browser, site, "t")
    after(120, "visible")
    answer(browser, site, "t")
    _, *measured = rows(site, "SELECT visible_ms FROM labels ORDER BY label_id")
    assert measured == [(150,), (120,)]


def test_an_undo_of_nothing_takes_no_time_from_the_pair_on_the_screen(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    after = clock_of(browser)
    answer(browser, site, "t")
    answer(browser, site, "u")
    after(150, "visible")
    press(browser, "u")
    wait_for(browser, lambda b: "nothing more to undo" in by_id(b, "trouble").text)
    wait_for(browser, ready)
    after(120, "visible")
    answer(browser, site, "t")
    assert rows(site, "SELECT visible_ms FROM labels ORDER BY label_id")[2:] == [(270,)]


def test_a_held_enter_presses_a_button_once(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    button = browser.find_element("css selector", "[data-choice='left']")
    browser.execute_script("arguments[0].focus()", button)
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    for repeat in (False, True, True, True):
        event = {"type": "keyDown", **enter, "autoRepeat": repeat}
        browser.execute_cdp_cmd("Input.dispatchKeyEvent", event)
        # A second press would take the choice back.
        assert button.get_attribute("aria-pressed") == "true"
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", **enter})
    assert site.labels() == []


def test_a_key_that_is_held_answers_once_and_capital_letters_are_keys_too(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    held = """
    const held = { key: "t", repeat: true, bubbles: true };
    document.body.dispatchEvent(new KeyboardEvent("keydown", held));
    return document.body.hasAttribute("aria-busy");
    """
    assert not browser.execute_script(held)
    answer(browser, site, "B")  # With Caps Lock.
    assert [row[1] for row in site.labels()] == ["both_bad"]


def test_a_theme_that_was_chosen_stays(browser: Any, site: Any, pair_of: Any) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    theme = "return document.documentElement.dataset.theme ?? null"
    press(browser, "d")
    chosen = browser.execute_script(theme)
    assert chosen in ("dark", "light")
    browser.refresh()
    wait_for(browser, shown)
    assert browser.execute_script(theme) == chosen
    assert by_id(browser, "theme").get_attribute("aria-pressed") == str(chosen == "dark").lower()
    browser.execute_script("localStorage.removeItem('theme')")


def test_a_link_with_a_token_signs_in_where_the_page_to_sign_in_is_open_already(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login")
    browser.execute_script("location.hash = 'token=guess'")
    wait_for(browser, lambda b: by_id(b, "error").is_displayed())
    # Neither the address nor the history keeps it.
    assert browser.current_url == f"{site.address}/login"
    token = site.token("ana")
    browser.execute_script("location.hash = arguments[0]", f"token={token}")
    wait_for(browser, lambda b: b.current_url == f"{site.address}/")
    wait_for(browser, ready)


def test_a_lead_pauses_and_resumes_and_says_how_many_are_to_judge_a_pair(
    browser: Any, site: Any, pair_of: Any, tmp_path: Path
) -> None:
    site.token("ana")
    sign_in(browser, site, "lea", "lead")
    browser.get(f"{site.address}/lead")
    for said, then in (("Pause", "Resume"), ("Resume", "Pause")):
        button = browser.find_element("css selector", '[data-person="ana"]')
        assert button.text == said
        browser.execute_script("window.before = true")
        button.click()
        wait_for(browser, lambda b: b.execute_script("return !window.before"))
        assert browser.find_element("css selector", '[data-person="ana"]').text == then
        paused = rows(site, "SELECT paused_reason FROM annotators WHERE annotator_id = 'ana'")
        assert paused == [("paused by the lead" if said == "Pause" else None,)]
    file = tmp_path / "comparisons.jsonl"
    pairs = [replace(one, round="r7") for one in twelve(pair_of)]
    file.write_text(to_lines([asdict(one) for one in pairs]), encoding="utf-8")
    for name, value in (("round", "r7"), ("file", str(file)), ("overlap", "3")):
        browser.find_element("name", name).send_keys(value)
    browser.find_element("css selector", "#publish button").click()
    wait_for(browser, lambda b: "12 pairs added" in by_id(b, "done").text)
    assert rows(site, "SELECT overlap FROM rounds") == [(3,)]


def test_keys_work_where_a_keyboard_has_other_letters(
    browser: Any, site: Any, pair_of: Any
) -> None:
    site.publish(twelve(pair_of))
    sign_in(browser, site)
    strike = "document.body.dispatchEvent(new KeyboardEvent('keydown', arguments[0]));"
    for key, code in (
        ("\u0435", "KeyT"),  # Russian
        ("\u0644\u0627", "KeyB"),  # One key of an Arabic keyboard writes two letters.
        ("t", "KeyK"),  # Dvorak: the letter counts, not its place.
        ("#", "Digit3"),  # No 3: with Shift.
        ("\u03c2", "KeyW"),  # Nothing has this place.
        ("\u03b2", "KeyB"),  # Greek
    ):
        wait_for(browser, ready)
        told = {"key": key, "code": code, "bubbles": True, "shiftKey": key == "#"}
        browser.execute_script(strike, told)
    wait_for(browser, lambda _: len(site.labels()) == 4)
    assert [row[1] for row in site.labels()] == ["tie", "both_bad", "tie", "both_bad"]

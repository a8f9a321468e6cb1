"""What a person does at the labelling page: signs in, reads, presses keys, answers."""

from collections.abc import Callable
from typing import Any

import pytest

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui")
Keys = keys.Keys


def wait_for(browser: Any, condition: Callable[[Any], Any], seconds: float = 120) -> Any:
    return waiting.WebDriverWait(browser, seconds, poll_frequency=0.02).until(condition)


def by_id(browser: Any, name: str) -> Any:
    return browser.find_element("id", name)


def sign_in(browser: Any, site: Any, name: str = "ana", role: str = "annotator") -> None:
    browser.delete_all_cookies()
    browser.get(f"{site.address}/login#token={site.token(name, role)}")
    wait_for(browser, lambda b: b.current_url == f"{site.address}/")
    wait_for(browser, lambda b: not by_id(b, "work").get_property("hidden") or said(b))
    wait_for(browser, ready)


def said(browser: Any) -> str:
    return (
        "" if by_id(browser, "message").get_property("hidden") else by_id(browser, "message").text
    )


def press(browser: Any, *pressed: str) -> None:
    for key in pressed:
        browser.switch_to.active_element.send_keys(key)


def ready(browser: Any) -> bool:
    """Whether the page takes a choice: it has answered, and the pair has been there a moment."""
    body = browser.find_element("tag name", "body")
    return body.get_attribute("aria-busy") is None and body.get_attribute("data-unread") is None


def answer(browser: Any, site: Any, *pressed: str) -> None:
    """Presses keys that end in a saved label and waits for it and for the next pair."""
    before = len(site.labels())
    press(browser, *pressed)
    wait_for(browser, lambda _: len(site.labels()) > before)
    wait_for(browser, ready)


def shown(browser: Any) -> str:
    return str(by_id(browser, "prompt").text)


def fit(browser: Any, width: int, height: int) -> None:
    """Give the page a window of this size, in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def twelve(pair_of: Any) -> list[Any]:
    return [
        pair_of(
            f"Request {n}: where is my order?", f"good {n} is on its way.", f"bad {n}. Go away."
        )
        for n in range(12)
    ]

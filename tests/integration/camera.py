"""Pictures for the documentation, taken in headless Chromium while a test runs.

Only where the variable SCREENSHOTS names a folder for them; elsewhere nothing is opened.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.conftest import CHROMIUM, DRIVER

PATIENCE_SECONDS = 900


class Camera:
    """A browser that opens pages and keeps what it shows."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self._folder = browser, folder

    def sees(self, *words: str) -> bool:
        text = self.browser.execute_script("return document.body.innerText")
        return all(word in text for word in words)

    def wait(self, there: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not there():
            assert time.monotonic() < deadline, self.browser.execute_script(
                "return document.body.innerText"
            )
            time.sleep(0.5)

    def take(self, name: str, address: str, *words: str) -> None:
        """Opens a page, and takes a picture as soon as it shows these words."""
        self.browser.get(address)
        self.wait(lambda: self.sees(*words))
        self.keep(name)

    def take_whole(self, name: str, address: str, *words: str) -> None:
        """The same of a page that is longer than the window."""
        size = self.browser.get_window_size()
        self.browser.set_window_size(size["width"], 2 * size["height"])
        self.take(name, address, *words)
        self.browser.set_window_size(size["width"], size["height"])

    def keep(self, name: str) -> None:
        time.sleep(3)  # what is drawn last has no word to wait for
        self.browser.save_screenshot(str(self._folder / f"{name}.png"))

    def sign_in(self, page: str, token: str) -> None:
        """On the labelling page, without asking for a pair."""
        self.browser.get(f"{page}/login")
        script = """
            const [token, done] = arguments;
            fetch("/api/login", {method: "POST", headers: {"Content-Type": "application/json"},
                                 body: JSON.stringify({token})}).then((got) => done(got.status));
        """
        assert self.browser.execute_async_script(script, token) == 200

    def press(self, label: str) -> None:
        """The last button of this name."""
        find = (
            "return [...document.querySelectorAll('button')].filter((one) => one.innerText.trim()"
        )
        script = f"{find} === arguments[0]).at(-1)"
        self.wait(lambda: self.browser.execute_script(script, label))
        self.browser.execute_script(script, label).click()


@contextmanager
def camera() -> Iterator[Camera | None]:
    folder = os.environ.get("SCREENSHOTS")
    if folder is None:
        yield None
        return
    from selenium import webdriver

    Path(folder).mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    assert CHROMIUM is not None, "no Chromium for the pictures"
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    # Chromium asks for nothing by itself.
    for name in ("quic", "background-networking", "component-update", "sync"):
        options.add_argument(f"--disable-{name}")
    options.add_argument("--window-size=1200,860")
    service = webdriver.ChromeService(executable_path=DRIVER)
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_page_load_timeout(PATIENCE_SECONDS)
    browser.set_script_timeout(PATIENCE_SECONDS)
    try:
        yield Camera(browser, Path(folder))
    finally:
        browser.quit()

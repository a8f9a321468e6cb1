"""A labelling server in a process of its own and a headless Chromium that opens it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedback.judgments import Pair
from feedback.store import accounts, rounds
from feedback.store.database import Database
from preferences.records import pair_id

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")


def make_pair(prompt: str, left: str, right: str, key: str = "r1") -> Pair:
    return Pair(
        pair_id=pair_id(prompt, left, right),
        round=key,
        prompt=prompt,
        response_a=left,
        response_b=right,
    )


class Site:
    """A running server and its store."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.store = folder / "feedback.db"
        self.database = Database(self.store)
        self._options = options
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: int = 0, *more: str) -> None:
        command = [sys.executable, "-m", "feedback", "serve", "--store", str(self.store)]
        rates = ["--gold-rate", "0", "--repeat-rate", "0", "--port", str(port)]
        self._process = subprocess.Popen(
            [*command, *rates, *self._options, *more],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PREFECT_API_URL": ""},
        )
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", self._process.stdout.readline())
        assert found is not None
        self.address = found[0]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def publish(self, pairs: list[Pair], overlap: int = 1) -> None:
        with self.database.writing() as connection:
            rounds.publish(connection, pairs, overlap=overlap)

    def token(self, name: str, role: str = "annotator") -> str:
        with self.database.writing() as connection:
            return accounts.new_token(connection, name, role=role)

    def labels(self) -> list[tuple[Any, ...]]:
        """(annotator, choice by its text's first word, strength, reason), in order."""
        with self.database.reading() as connection:
            return [
                tuple(row)
                for row in connection.exec_driver_sql(
                    "SELECT annotator_id, choice, strength, reason FROM labels ORDER BY label_id"
                )
            ]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    opened = Site(tmp_path)
    opened.token("warden")  # so that the server makes no account of its own
    opened.start()
    yield opened
    opened.kill()
    opened.database.close()


@pytest.fixture
def pair_of() -> Callable[..., Pair]:
    return make_pair


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; the tests are skipped where there is none."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: pip install selenium"
    )
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,900")
    service = webdriver.ChromeService(executable_path=DRIVER)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


@pytest.fixture
def picture(browser: Any, tmp_path: Path) -> Callable[[str], None]:
    """Saves a screenshot, in the folder that SCREENSHOTS names or beside the test's files."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str) -> None:
        browser.save_screenshot(str(folder / f"{name}.png"))

    return save

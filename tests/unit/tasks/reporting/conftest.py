"""A world of three rounds, and the page that the report makes of it."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tasks.params.loading import RoundParams
from tasks.report import build_report
from tests.unit.tasks.reporting.report_world import chained, write_world

ROUNDS = ("r1", "r2", "r3")


class Page(HTMLParser):
    """Counts tags, collects links and everything that could run or fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def report(
    root: Path,
    rounds: tuple[str, ...] = ROUNDS,
    final: str | None = None,
    params: dict[str, RoundParams] | None = None,
    **options: int,
) -> str:
    out = root / "reports"
    out.mkdir(exist_ok=True)
    final = final or (rounds[-1] if rounds else "r1")
    build_report(root, params or chained(rounds or ("r1",)), final, out, seed=0, **options)
    return (out / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    write_world(root)
    return root

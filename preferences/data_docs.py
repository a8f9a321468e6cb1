"""Makes Great Expectations' HTML report work without a network.

Its pages load style sheets and scripts from a dozen servers: offline they are unstyled, online they
reveal their readers to those servers. Here every page loses its scripts and remote resources, and
gets a style sheet of its own and a policy that forbids the browser to load or run anything else.
"""

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

from preferences.report import Finding

_STYLE = Path(__file__).with_name("data_docs.css")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:; base-uri 'none'; "
    "form-action 'none'"
)
_SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE)
_REMOTE = re.compile(
    r"<(?:link|img|source|iframe)\b[^>]*\b(?:href|src)\s*=\s*[\"']?(?:https?:)?//[^>]*>"
    r"|<iframe\b.*?</iframe\s*>",
    re.DOTALL | re.IGNORECASE,
)
_REFRESH = re.compile(r"<meta\b[^>]*http-equiv\s*=\s*[\"']?refresh[^>]*>", re.IGNORECASE)
_HANDLER = re.compile(r"\son\w+\s*=\s*(?:\"[^\"]*\"|'[^']*')", re.IGNORECASE)
_HEAD = re.compile(r"<head\b[^>]*>", re.IGNORECASE)


def make_readable_offline(folder: Path) -> None:
    """Rewrites all pages below a folder."""
    head = _head()
    for page in sorted(folder.rglob("*.html")):
        html = page.read_text(encoding="utf-8")
        before = ""
        while html != before:  # A removal may create a new match.
            before = html
            for pattern in (_SCRIPT, _REMOTE, _REFRESH, _HANDLER):
                html = pattern.sub("", html)
        page.write_text(_HEAD.sub(lambda m: m.group() + head, html, count=1), encoding="utf-8")
    _write_index(folder, head)


def add_places(folder: Path, findings: Iterable[Finding]) -> None:
    """Adds the page `rows.html`: where the rows are that each rule found."""
    parts = []
    for finding in findings:
        if finding.places:
            places = "".join(f"<li>{escape(place)}</li>" for place in finding.places)
            more = f"<p>{finding.unlisted}</p>" if finding.unlisted else ""
            title = f"{finding.rule} ({finding.severity}): {len(finding.rows):,}"
            parts.append(f"<h2>{title}</h2><ul>{places}</ul>{more}")
    head = _head()
    (folder / "rows.html").write_text(
        f"<!doctype html><html><head>{head}<title>Rows</title></head><body><h1>Rows</h1>"
        f"{''.join(parts) or '<p>No rule found a row.</p>'}</body></html>",
        encoding="utf-8",
    )
    _write_index(folder, head)


def _head() -> str:
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>\n{style}</style>"
    )


def _write_index(folder: Path, head: str) -> None:
    """Replaces the index, which scripts would fill, by a list of the pages."""
    pages = sorted(
        page.relative_to(folder).as_posix()
        for page in folder.rglob("*.html")
        if page != folder / "index.html"
    )
    links = "".join(f'<li><a href="{escape(page)}">{escape(page)}</a></li>' for page in pages)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(
        f"<!doctype html><html><head>{head}<title>Data Docs</title></head><body>"
        "<h1>Data Docs</h1><p>validations: what was found; rows: where; expectations: what was "
        "required.</p>"
        f"<ul>{links}</ul></body></html>",
        encoding="utf-8",
    )

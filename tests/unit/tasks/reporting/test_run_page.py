"""The page beside the report: what changes from run to run."""

import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.run_page import commit_link, write_run_page
from tasks.tracking.sent import DEFAULT_STORE, Sent, save_sent, store_digest
from tasks.tracking.shipping import tracking_uri
from tasks.workspace.execution import Execution

COMMIT = "1cd83fd0000000000000000000000000000000aa"
SUMMARY: dict[str, Any] = {
    "seed": 0,
    "commit": COMMIT,
    "machine": {"cpu": "a <b>processor</b>", "threads": 2},
    "seconds": {"total": 93.0, "stages": {"sft": 61.0, "ppo@r1": 30.0}},
}


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name == "href"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "RLHF_MLFLOW_UI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "reports").mkdir()
    spool = tmp_path / ".work" / "spool" / "sft" / "0"
    spool.mkdir(parents=True)
    (tmp_path / DEFAULT_STORE).parent.mkdir()
    (tmp_path / DEFAULT_STORE).touch()
    (spool / "start.json").write_text(json.dumps({"stage": "sft", "execution": "now"}))
    save_sent(spool, Sent(uri=store_digest(spool, tracking_uri(tmp_path)), run="a1b2"))
    return tmp_path


def page(workspace: Path, summary: dict[str, Any] = SUMMARY, *, reported: bool = True) -> str:
    execution = Execution(id="now", key="k", unfinished=False, seconds=93.0)
    name = "kl 0.10, 2 rounds, 1cd83fd"
    write_run_page(workspace, name, summary, execution, reported=reported)
    return (workspace / "reports" / "run.html").read_text(encoding="utf-8")


def test_it_has_name_commit_times_and_machine(workspace: Path) -> None:
    text = page(workspace)
    assert "kl 0.10, 2 rounds, 1cd83fd" in text
    assert COMMIT in text
    assert "1:33 min" in text
    assert "sft 1:01 min" in text
    assert "a &lt;b&gt;processor&lt;/b&gt;, 2 threads" in text
    with_gpu = SUMMARY | {"machine": SUMMARY["machine"] | {"gpus": ["NVIDIA H200"]}}
    assert "NVIDIA H200, a &lt;b&gt;processor" in page(workspace, with_gpu)


def test_it_names_the_time_of_what_earlier_runs_had_done(workspace: Path) -> None:
    assert "earlier runs" not in page(workspace)
    seconds = SUMMARY["seconds"] | {"earlier": {"base": 61.0}}
    text = page(workspace, SUMMARY | {"seconds": seconds})
    assert "not counting 1 stage that earlier runs had done in 1:01 min: with it 2:34 min" in text


def test_it_leads_to_the_report_and_its_numbers(workspace: Path) -> None:
    assert {"index.html", "results.json", "summary.json"} <= set(Links(page(workspace)).found)


def test_a_run_without_a_report_leads_to_none(workspace: Path) -> None:
    """As where it waits for people, or was blocked."""
    text = page(workspace, reported=False)
    assert Links(text).found == ["summary.json"]
    assert "not come to its report" in text


def test_the_report_of_an_earlier_run_is_called_that(workspace: Path) -> None:
    (workspace / "reports/index.html").touch()
    text = page(workspace, reported=False)
    assert "are of an earlier run" in text
    assert "index.html" in Links(text).found
    assert "earlier run" not in page(workspace)


def test_it_runs_nothing_and_fetches_nothing(workspace: Path) -> None:
    text = page(workspace)
    assert "default-src 'none'" in text
    assert not {"script", "iframe", "object", "embed", "img", "form"} & Links(text).tags


def test_runs_are_links_where_mlflow_has_a_page(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "make ui" in page(workspace)
    assert "a1b2" in page(workspace)
    monkeypatch.setenv("RLHF_MLFLOW_UI", "http://127.0.0.1:5001")
    assert "http://127.0.0.1:5001/#/runs/a1b2" in Links(page(workspace)).found


@pytest.mark.parametrize(
    ("remote", "link"),
    [
        ("https://user:secret@git.example/team/rounds.git", "https://git.example/team/rounds"),
        ("git@git.example:team/rounds.git", "https://git.example/team/rounds"),
        ("https://git.example:8443/team/rounds", "https://git.example:8443/team/rounds"),
        ("/srv/git/rounds.git", None),
        ("ssh://git@git.example/team/rounds.git", "https://git.example/team/rounds"),
        (None, None),
    ],
)
def test_the_commit_is_a_link_where_git_has_a_server(
    tmp_path: Path, remote: str | None, link: str | None
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    if remote is not None:
        command = ["git", "-C", str(tmp_path), "remote", "add", "origin", remote]
        subprocess.run(command, check=True)
    assert commit_link(tmp_path, COMMIT) == (link and f"{link}/commit/{COMMIT}")

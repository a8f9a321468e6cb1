"""Commands that need a Prefect server say in one line why they cannot use it; real processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows import servers
from flows.environment import environment as flow_environment
from flows.reach import ReachError, require_address
from tests.stage_world import copy_tiny_repository, environment
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.long

AWAY = "http://ada:hunter2@127.0.0.1:9/api"
ABSENT = "PREFECT_API_URL: expected a Prefect server at http://***@127.0.0.1:9/api, found none: "

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with remotes, which nobody needs to reach."""
    root = tmp_path_factory.mktemp("reach") / "clone"
    copy_tiny_repository(root, rounds=1)
    with (root / ".dvc/config").open("a") as config:
        config.write("['remote \"shared\"']\n    url = /nowhere\n")
    text = (root / ".dvc/config").read_text()
    (root / ".dvc/config").write_text(text.replace("[core]\n", "[core]\n    remote = shared\n"))
    for command in ("init --quiet", "remote add origin /nowhere"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    home = tmp_path_factory.mktemp("prefect")
    env = {**flow_environment(home), "PREFECT_HOME": str(home)}
    with servers.prefect_server(servers.any_free_port(), env) as running:
        running.wait()
        yield running


def said(clone: Path, command: str, **settings: str) -> tuple[int, str]:
    """The exit code, and what the command writes to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=clone,
        env={**environment(clone.parent), "PREFECT_HOME": str(clone.parent / "home"), **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


COMMANDS = ["flows.local", "flows.deployment", "flows.worker gpu --register-only"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_is_away_is_named_in_one_line(clone: Path, command: str):
    code, words = said(clone, command, PREFECT_API_URL=AWAY)
    assert (code, words.count("\n")) == (2, 1), words
    assert words.startswith(ABSENT)


@pytest.mark.parametrize(
    ("command", "password", "expected"),
    [
        ("flows.local", "", "asks for a password, found none\n"),
        ("flows.deployment", "wrong", "refuses it\n"),
        ("flows.worker gpu --register-only", "wrong", "refuses it\n"),
    ],
)
def test_a_password_that_the_server_refuses_is_named_in_one_line(
    clone: Path, server: servers.Server, command: str, password: str, expected: str
):
    address = f"{server.url}/api"
    settings = {"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": password}
    code, words = said(clone, command, **settings)
    assert words == f"PREFECT_API_AUTH_STRING: the server at {address} {expected}"
    assert code == 2


def test_a_worker_outside_of_a_git_repository_says_so_in_one_line(tmp_path: Path):
    settings = {"PREFECT_API_URL": AWAY, "PYTHONPATH": str(ROOT)}
    code, words = said(tmp_path, "flows.worker gpu --register-only", **settings)
    assert (code, words.count("\n")) == (2, 1), words
    assert "fatal: not a git repository" in words


WANTED = "PREFECT_API_URL: expected an address such as http://127.0.0.1:4200/api, found "


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_address_is_named_in_one_line(clone: Path, command: str):
    assert said(clone, command, PREFECT_API_URL="http://[::1") == (2, f"{WANTED}http://[::1\n")


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("http://ada:hunter2@host:port/api", "http://***@host:port/api"),
        ("127.0.0.1:4200/api", "127.0.0.1:4200/api"),
        ("http:///api", "http:///api"),
        ("ftp://127.0.0.1:4200/api", "ftp://127.0.0.1:4200/api"),
        ("http://127.0.0.1:0/api", "http://127.0.0.1:0/api"),
    ],
)
def test_no_address_is_shown_with_its_password(
    monkeypatch: pytest.MonkeyPatch, found: str, shown: str
):
    monkeypatch.setenv("PREFECT_API_URL", found)
    with pytest.raises(ReachError) as refusal:
        require_address()
    assert str(refusal.value) == f"{WANTED}{shown}"


def test_an_address_without_its_last_part_is_named_with_it(clone: Path, server: servers.Server):
    password = (server.child.log.parent / "auth").read_text().strip()
    settings = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": password}
    code, words = said(clone, "flows.deployment", **settings)
    assert (code, words.count("\n")) == (2, 1), words
    assert words.startswith(f"PREFECT_API_URL: expected a Prefect server at {server.url}, found ")
    assert words.endswith(". Addresses of Prefect's servers end in /api\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_of_something_else_is_named_in_one_line(clone: Path, command: str):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{page.server_port}/api"
        code, words = said(clone, command, PREFECT_API_URL=address)
        page.shutdown()
    assert (code, words.count("\n")) == (2, 1), words
    assert words.startswith(
        f"PREFECT_API_URL: expected a Prefect server at {address}, found none: "
    )

"""What is said where git refuses: its reason, without advice and tokens. Real git, no remotes."""

import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tasks.workspace.git import GitError, git
from tests.stage_world import environment


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose branch `runs/x` has another commit than that of its remote."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "checkout"
    folder.mkdir()
    for command in (
        "init --quiet --bare origin.git",
        "-C checkout init --quiet --initial-branch=main",
        "-C checkout commit --quiet --allow-empty --message one",
        "-C checkout push --quiet ../origin.git main:runs/x",
        "-C checkout commit --quiet --amend --allow-empty --message two",
        "-C checkout branch runs/x",
    ):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return folder


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=git")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def token_refused() -> Iterator[int]:
    """The port of a server of git's that takes no token, as after it has expired."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("push", "--quiet", "../origin.git", "runs/x"), r"! \[rejected\] +runs/x -> runs/x \("),
        (("push", "--quiet", "../nowhere.git", "runs/x"), "fatal: '../nowhere.git' does not"),
        (("push", "../origin.git", "y"), "error: src refspec y does not match any"),
        (("checkout", "nowhere"), "error: pathspec 'nowhere' did not match"),
        (("rev-parse", "--verify", "--quiet", "y"), "no message"),
    ],
)
def test_the_reason_is_said_and_no_hint(root: Path, arguments: tuple[str, ...], said: str):
    with pytest.raises(GitError, match=rf"^git {arguments[0]} \S+: {said}"):
        git(root, *arguments)


def test_git_speaks_english_whatever_the_user_reads(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Its lines are looked through for what went wrong."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    said = git(root, "said", settings=["alias.said=!printenv LC_ALL LANGUAGE"])
    assert said == "C.UTF-8\nde", "LANGUAGE counts in no locale of C"


def test_of_a_file_that_another_git_holds_its_name_is_said(root: Path):
    (root / ".git/index.lock").touch()
    with pytest.raises(GitError, match=r"fatal: Unable to create '.*/index\.lock': File exists"):
        git(root, "add", "--all")


def test_where_ssh_fails_its_own_reason_is_said_too(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_SSH_COMMAND", "echo 'ssh: connect to host x: refused' >&2; false")
    said = "ssh: connect to host x: refused; fatal: Could not read from remote repository"
    with pytest.raises(GitError, match=rf"^git push --quiet: {said}"):
        git(root, "push", "--quiet", "nobody@127.0.0.1:x", "runs/x")


def test_a_token_in_the_address_of_a_remote_is_not_said(root: Path, token_refused: int):
    """A token alone is the name to git, which asks for its password and says for whom."""
    remote = f"http://ghp_canary@127.0.0.1:{token_refused}/x.git"
    with pytest.raises(GitError, match=r"could not read Password for 'http://\*\*\*@127") as error:
        git(root, "push", "--quiet", remote, "runs/x")
    assert "canary" not in str(error.value)

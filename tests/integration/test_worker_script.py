"""The script of compose.yaml's worker, `deploy/worker.sh`, up to the flows that it starts."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.stage_world import environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A repository as the image has it, with nothing withdrawn, and what the script starts."""
    image = tmp_path / "image"
    (image / "data/withdrawn").mkdir(parents=True)
    (image / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/worker.sh", image / "deploy")
    for name in ("texts", "judgments"):
        (image / f"data/withdrawn/{name}.jsonl").write_text("\n")
    # The script ends by starting the flows, which need a Prefect server.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\n")
    (tmp_path / "bin/python").chmod(0o755)
    (tmp_path / "auth").write_text("secret")
    (tmp_path / "data").mkdir()
    in_git(image, "init", "--quiet")
    in_git(image, "add", "--all")
    in_git(image, "commit", "--quiet", "-m", "one")
    return image


def in_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment(folder.parent), check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def start_worker(image: Path) -> Path:
    """Run the worker's script; its checkout."""
    done = script(image)
    assert done.returncode == 0, done.stderr
    return image.parent / "data/rounds"


def script(image: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    folder = image.parent
    env = environment(folder, RLHF_DATA=str(folder / "data"), **variables)
    env |= {"PREFECT_AUTH_FILE": str(folder / "auth"), "PATH": f"{folder}/bin:{env['PATH']}"}
    return subprocess.run(
        ["bash", "deploy/worker.sh"], cwd=image, env=env, capture_output=True, text=True
    )


def test_what_was_withdrawn_in_the_workers_checkout_stays_so_with_every_image(image: Path):
    texts, judgments, log = (f"data/withdrawn/{n}.jsonl" for n in ("texts", "judgments", "log"))
    checkout = start_worker(image)
    assert in_git(checkout, "status", "--porcelain") == ""
    (checkout / texts).write_text("here\n")
    (checkout / log).write_text("the log here\n")
    first = in_git(image, "rev-parse", "HEAD")
    for name, content in {texts: "image\n", judgments: "image too\n", log: "its log\n"}.items():
        (image / name).write_text(content)
    in_git(image, "add", "--all")
    in_git(image, "commit", "--quiet", "-m", "two")

    for _ in range(2):
        start_worker(image)
        assert in_git(checkout, "rev-parse", "HEAD") == in_git(image, "rev-parse", "HEAD")
        found = {name: (checkout / name).read_text() for name in (texts, judgments, log)}
        assert found == {
            texts: "image\nhere\n", judgments: "image too\n", log: "its log\nthe log here\n",
        }  # fmt: skip

    in_git(image, "reset", "--quiet", "--hard", first)
    start_worker(image)
    assert in_git(checkout, "rev-parse", "HEAD") == first
    assert sorted((checkout / texts).read_text().split()) == ["here", "image"]
    assert (checkout / judgments).read_text() == "image too\n"


def test_the_worker_fetches_the_runs_of_others_while_it_has_workspaces(image: Path):
    checkout, branches = start_worker(image), image.parent / "data/branches.git"
    in_git(checkout, "worktree", "add", "--quiet", "-b", "runs/ours", ".work/runs/ours")
    in_git(checkout, "push", "--quiet", "team", "runs/ours")
    in_git(image, "push", "--quiet", str(branches), "HEAD:refs/heads/runs/theirs")
    in_git(image, "push", "--quiet", str(branches), "HEAD:refs/tags/done/theirs")
    start_worker(image)
    found = in_git(checkout, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags")
    assert {"refs/heads/runs/ours", "refs/heads/runs/theirs", "refs/tags/done/theirs"} <= set(
        found.splitlines()
    )


def test_a_start_that_was_killed_does_not_stop_the_next(image: Path):
    data = image.parent / "data"
    (data / "rounds.draft/.git").mkdir(parents=True)
    checkout = start_worker(image)
    assert not (data / "rounds.draft").exists()
    assert in_git(checkout, "rev-parse", "HEAD") == in_git(image, "rev-parse", "HEAD")
    in_git(image, "commit", "--quiet", "--allow-empty", "-m", "two")
    (checkout / ".git/index.lock").touch()
    start_worker(image)
    assert in_git(checkout, "rev-parse", "HEAD") == in_git(image, "rev-parse", "HEAD")


@pytest.fixture
def locked() -> Iterator[str]:
    """The host and port of a git server that knows nobody's token."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=git")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("address", ["http://{}@{}/runs.git", "http//me:{}@{}/runs.git"])
def test_a_remote_that_refuses_leaves_no_token_in_the_log(image: Path, locked: str, address: str):
    """Of the first, git says where it would ask for a password; of the second, that it is none."""
    done = script(
        image, RLHF_GIT_REMOTE=address.format("a-secret-token", locked), no_proxy="127.0.0.1"
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "could not fetch all runs from the remote" in said
    assert "fatal: " in said
    assert "a-secret-token" not in said

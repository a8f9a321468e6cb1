"""What make does before it delegates: Python, the environment, and nothing twice."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.several import processes_in
from tests.waiting import eventually, waits_for_a_lock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with what the setup needs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".git").mkdir()
    return tmp_path


def make(root: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    # A make that runs these tests would pass on its options.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    return subprocess.run(
        ["make", *arguments],
        cwd=root,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def ready(root: Path) -> None:
    """As the setup leaves it."""
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (root / ".venv/ready").touch()


@pytest.mark.parametrize("target", ["repro", "test", "flow"])
def test_a_missing_python_is_one_sentence(root: Path, target: str):
    done = make(root, target, "PYTHON=python3.11-of-nowhere")

    first, *rest = done.stderr.splitlines()
    assert done.returncode == 2
    assert first == (
        "RLHF Rounds needs Python 3.11; 'python3.11-of-nowhere' was not found. "
        f"Install it, or name it: make {target} PYTHON=/path/to/python3.11"
    )
    assert [line.partition(":")[0] for line in rest] == ["make"]
    assert not (root / ".venv").exists()


def test_a_download_without_git_is_one_sentence_before_anything_is_installed(root: Path):
    """It would be found after minutes, by DVC and in its words."""
    (root / ".git").rmdir()
    done = make(root, "repro", f"PYTHON={sys.executable}")
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"RLHF Rounds works in a git repository; {root} is none. Clone it")
    assert not (root / ".venv").exists()

    tools = root / "tools"
    tools.mkdir()
    for name in ("make", "sh", "test", "bash"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (root / ".git").mkdir()
    done = make(root, "repro", f"PYTHON={sys.executable}", PATH=str(tools))
    assert done.stderr.splitlines()[0] == "RLHF Rounds needs git, which was not found."


def test_a_wrong_python_is_one_sentence(root: Path):
    old = root / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit\nexit 1\n')
    old.chmod(0o755)

    done = make(root, "repro", f"PYTHON={old}")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"RLHF Rounds needs Python 3.11; '{old}' is Python 3.9.1."
    assert not (root / ".venv").exists()


def test_a_second_call_sets_nothing_up(root: Path):
    ready(root)

    done = make(root, "--dry-run", "repro")

    assert done.stdout.split() == ["python", "-m", "tasks.repro"]


HANDED_OVER = """#!/bin/sh
for word in "$@"; do printf '<%s>' "$word"; done
"""
"""An interpreter that says which words it was given."""

REASONS = ["it's Lea's, 5 $ less: $x $(x) ${y}", 'said "so" `id` \\ $((1)', "$$", "better"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("promote", "ROUND=r1", "APPROVE=1"), ["tasks.promote", "r1", "--approve"]),
        (("rollback",), ["tasks.promote", "--rollback"]),
    ],
)
def test_a_name_and_a_reason_are_handed_over_as_they_are(
    root: Path, call: tuple[str, ...], words: list[str], reason: str
):
    ready(root)
    (root / ".venv/bin/python").write_text(HANDED_OVER)

    done = make(root, *call, "WHO=O'Hara $1", f"WHY={reason}")

    given = ["-m", *words, "--who", "O'Hara $1", "--why", reason]
    assert (done.stdout, done.stderr) == ("".join(f"<{word}>" for word in given), "")


def test_without_a_name_none_is_handed_over(root: Path):
    ready(root)

    done = make(root, "--dry-run", "promote", "ROUND=r1")

    assert done.stdout.split() == ["python", "-m", "tasks.promote", "r1"]


def test_other_versions_are_installed(root: Path):
    ready(root)
    os.utime(root / "constraints.txt", (2**32, 2**32))

    done = make(root, "--dry-run", "repro")

    assert "pip install" in done.stdout


def test_without_an_interpreter_nothing_is_ready(root: Path):
    ready(root)
    (root / ".venv/bin/python").unlink()
    (root / ".venv/bin/python").symlink_to(root / "removed/python3.11")

    done = make(root, "--dry-run", "repro")

    assert "pip install" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("left", ["no pip", "no Python"])
def test_an_environment_that_cannot_be_used_is_made_anew(root: Path, left: str):
    """As Debian leaves it without python3.11-venv, and as the removal of a Python does."""
    made = [sys.executable, "-m", "venv", "--without-pip", ".venv"]
    subprocess.run(made, cwd=root, check=True)
    (root / ".venv/ready").touch()
    if left == "no pip":
        (root / ".venv/ready").unlink()
    else:
        for name in ("python", "python3", "python3.11"):
            (root / ".venv/bin" / name).unlink()
            (root / ".venv/bin" / name).symlink_to(root / "removed/python3.11")

    done = make(root, "setup", f"PYTHON={sys.executable}", PIP_NO_INDEX="1")

    # Without an index nothing is installed, but it is pip that says so.
    assert "No matching distribution found" in done.stderr
    pip = [".venv/bin/python", "-m", "pip", "--version"]
    assert subprocess.run(pip, cwd=root, stdout=subprocess.DEVNULL).returncode == 0
    assert not (root / ".venv/ready").exists()


def test_an_environment_of_another_python_is_one_sentence(root: Path):
    ready(root)
    (root / ".venv/ready").unlink()
    newer = '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.12.3\n[ "$1" != -c ]\n'
    (root / ".venv/bin/python").write_text(newer)

    done = make(root, "setup", f"PYTHON={sys.executable}")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "RLHF Rounds needs Python 3.11; that of .venv is Python 3.12.3. "
        "Remove it (rm -r .venv), then give the command again."
    )


def stand_in(root: Path, pip: str) -> Path:
    """A Python whose environments have this in place of pip, and note when it begins and ends."""
    installs = 'case "$*" in "-I -m pip install "*) ;; *) exit 0 ;; esac'
    inside = f"#!/bin/sh\n{installs}\necho begin >> pip.log\n{pip}\necho end >> pip.log\n"
    python = root / "stand-in"
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n'
        f"mkdir -p .venv/bin\ncat > .venv/bin/python <<'END'\n{inside}END\n"
        "chmod +x .venv/bin/python\n"
    )
    python.chmod(0o755)
    return python


def log(root: Path) -> list[str]:
    return (root / "pip.log").read_text().split()


def test_two_that_set_up_at_once_do_it_once(root: Path):
    python = stand_in(root, "while [ ! -e go ]; do sleep 0.05; done")
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(make, root, "setup", f"PYTHON={python}") for _ in range(2)]
        waits = "Another make is setting up .venv; waiting for it"
        # The one waits for the lock, the other for us.
        eventually((root / "pip.log").exists)
        eventually(lambda: any(map(waits_for_a_lock, processes_in(root))))
        assert log(root) == ["begin"]
        (root / "go").touch()
        done = [one.result() for one in both]
    assert [one.returncode for one in done] == [0, 0], done
    assert log(root) == ["begin", "end"]
    says = sorted(one.stdout.splitlines() for one in done)
    assert says == [[waits], ["Setting up .venv (a few minutes, once)"]]
    assert (root / ".venv/ready").exists()


def test_who_fails_or_is_killed_leaves_no_lock(root: Path):
    python = stand_in(root, "[ -e go ] || exit 1")
    failed = make(root, "setup", f"PYTHON={python}")
    assert failed.returncode == 2
    assert not (root / ".venv/ready").exists()
    (root / "go").touch()
    assert make(root, "setup", f"PYTHON={python}").returncode == 0
    assert log(root) == ["begin", "begin", "end"]
    assert (root / ".venv/ready").exists()


def test_continuous_integration_runs_the_checks_and_the_tests():
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if line.startswith("make")]
    assert steps == ["make check", "make test", "make test-long", "make verify STAGES=2"]
    assert os.access(ROOT / ".ci/run", os.X_OK)

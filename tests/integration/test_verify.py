"""`make verify` on a real git and DVC repository with two small stages of its own."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.reporting.verification import outputs_digest
from tasks.workspace.dvc_lockfile import read_entries
from tasks.workspace.held import take
from tests.git_command import git
from tests.integration.verify_world import (  # noqa: F401
    PARAMS,
    PATIENCE_SECONDS,
    STAGE,
    change_lock,
    commit_all,
    contents,
    environment,
    recorded_fixture,
    root_fixture,
    start,
    verify,
)
from tests.waiting import eventually, is_alive, written

pytestmark = pytest.mark.long


def test_equal_outputs_are_counted_and_the_checkout_is_as_before(root: Path) -> None:
    before, commit = contents(root), git(root, "rev-parse", "--short=7", "HEAD")

    code, out, err = verify(root)

    assert code == 0, err
    assert f"All 2 outputs have the bytes of commit {commit}." in out
    digest = outputs_digest(read_entries(root))
    assert re.search(rf"\| `{commit}` \| all 2 outputs equal \| `{digest}` \| .* \| 2 \| ", out)
    assert re.search(r"\.work/verify \(\d+ MB\) was removed\.", out)
    assert contents(root) == before
    assert not (root / ".work/verify").exists()


def poison_cache(root: Path) -> None:
    """Let DVC's run cache name another result for each stage, whose objects are sound."""
    cache, content = root / ".dvc/cache", b'{"gold": "poison"}'
    file = hashlib.md5(content, usedforsecurity=False).hexdigest()
    listing = json.dumps([{"md5": file, "relpath": "metrics.json"}]).encode()
    folder = hashlib.md5(listing, usedforsecurity=False).hexdigest() + ".dir"
    for name, text in ((file, content), (folder, listing)):
        (cache / "files/md5" / name[:2]).mkdir(parents=True, exist_ok=True)
        (cache / "files/md5" / name[:2] / name[2:]).write_bytes(text)
    runs = [path for path in (cache / "runs").rglob("*") if path.is_file()]
    assert len(runs) == 2
    for path in runs:
        text = path.read_text()
        path.chmod(0o644)
        path.write_text(
            re.sub(r"(outs:.*?md5: )\w+\.dir", rf"\g<1>{folder}", text, flags=re.DOTALL)
        )


def test_neither_the_cache_nor_the_outputs_of_the_checkout_are_used(
    root: Path, tmp_path: Path
) -> None:
    poison_cache(root)
    shutil.rmtree(root / "results")
    victim = shutil.copytree(root, tmp_path / "victim")
    (victim / "dvc.lock").unlink()
    repro = [sys.executable, "-m", "dvc", "repro", "--quiet", "baseline"]
    subprocess.run(repro, cwd=victim, check=True, env=environment())
    assert "poison" in (victim / "results/baseline/metrics.json").read_text()

    code, out, err = verify(root)

    assert code == 0, err
    assert set(re.findall(r"Running stage '([^']+)'", out)) == {"baseline", "evaluate@r1"}


def test_an_output_that_differs_is_named_with_its_stage_and_the_clone_is_kept(root: Path) -> None:
    change_lock(root, "evaluate@r1")
    commit = commit_all(root)

    code, out, err = verify(root)

    assert code == 8, err
    assert (
        f"evaluate@r1 is the first stage that differs from commit {commit}: results/evaluate/r1 "
        "(1 of 2 outputs differ in all)." in out
    )
    assert f"| `{commit}` | 1 of all 2 outputs differ, from evaluate@r1 on |" in out
    assert "is kept, to look at" in out
    assert (root / ".work/verify/results/evaluate/r1/metrics.json").is_file()
    # The record of the environment is of another dvc.lock now.
    assert "the commit does not say what its run was made on; here: python 3.11.7" in out


def test_another_environment_and_other_numbers_stand_beside_those_of_the_commit(root: Path) -> None:
    code, out, err = verify(root, WANTED="other")

    assert code == 8, err
    assert "evaluate@r1 is the first stage that differs" in out
    assert "  python: 3.11.7, here 3.11.98\n" in out
    assert "threads:" not in out
    assert re.search(r"  sft +gold +8\.7, here 8\.7 \[8\.45, 8\.95\]\n", out)
    assert re.search(r"  r1 +gold +8\.7, here 8\.07 \[7\.82, 8\.32\]\n", out)

    code, out, err = verify(root)
    assert code == 0, err  # What was kept is no obstacle.


def test_a_dvc_lock_of_other_code_and_params_is_named(root: Path) -> None:
    (root / "stage.py").write_text(STAGE.replace("8.7", "8.8"))
    (root / "params.yaml").write_text(PARAMS.replace("seed: 5", "seed: 6"))
    commit_all(root)

    code, out, err = verify(root)

    assert code == 8, err
    assert "baseline is the first stage that differs" in out
    assert (
        "Its inputs are others than dvc.lock recorded: stage.py, params.yaml: run.seed. "
        "Run `make repro` and commit dvc.lock with them." in out
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("dvc.lock", "<<<<<<< HEAD\nstages: {}\n", "not valid YAML (line 1); is it a merge conf"),
        ("params.yaml", "run: {seed: 5\n<<<<<<< HEAD\n", "not valid YAML: "),
    ],
)
def test_a_damaged_file_of_the_commit_is_bad_input(
    root: Path, name: str, content: str, problem: str
) -> None:
    (root / name).write_text(content)
    commit = commit_all(root)

    code, _, err = verify(root)

    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"commit {commit}: {name}: {problem}")


def test_the_first_stages_can_be_verified_alone(root: Path) -> None:
    change_lock(root, "evaluate@r1")
    commit = commit_all(root)

    code, out, err = verify(root, "--stages", "1")

    assert code == 0, err
    assert f"The first stage's 1 output have the bytes of commit {commit}." in out
    assert "Running stage 'evaluate@r1'" not in out

    # Nor does it matter that the commit knows nothing of the others.
    yaml = YAML()
    lock = yaml.load(root / "dvc.lock")
    del lock["stages"]["evaluate@r1"]
    yaml.dump(lock, root / "dvc.lock")
    commit_all(root)
    code, _, err = verify(root, "--stages", "1")
    assert code == 0, err


@pytest.mark.parametrize("count", ["0", "3", "two"])
def test_a_wrong_number_of_stages_is_one_clear_error(root: Path, count: str) -> None:
    commit = git(root, "rev-parse", "--short=7", "HEAD")

    code, _, err = verify(root, f"--stages={count}")

    assert code == 2
    assert err == (
        f"STAGES: expected a whole number from 1 to 2, the stages of commit {commit}; "
        f"found '{count}'\n"
    )
    assert not (root / ".work/verify").exists()


def test_a_commit_without_a_recorded_run_has_nothing_to_compare_with(root: Path) -> None:
    (root / "dvc.lock").unlink()
    commit = commit_all(root)

    code, _, err = verify(root)

    assert code == 2
    assert err == (
        f"dvc.lock of commit {commit}: no entry for baseline, evaluate@r1, so there is nothing to "
        "compare with; run `make repro` and commit dvc.lock\n"
    )


def test_uncommitted_changes_are_named_and_left_out(root: Path) -> None:
    (root / "stage.py").write_text("raise SystemExit('edited')\n")

    code, out, err = verify(root)

    assert code == 0, err
    assert out.startswith("The commit is verified, without the uncommitted changes: stage.py\n")


def test_a_second_one_says_that_the_first_is_running(root: Path) -> None:
    (root / ".work").mkdir(exist_ok=True)
    lock = take(root / ".work/verify.lock")
    assert lock is not None
    lock.write("4711\n")
    lock.flush()

    with lock:
        code, _, err = verify(root)

    assert code == 7
    assert err == f"{root}: `make verify` is running here (process 4711)\n"


def test_a_stage_that_does_not_go_through_ends_it_with_its_own_code(root: Path) -> None:
    code, out, err = verify(root, WANTED="blocked")

    assert code == 4
    assert "baseline was blocked: 3 contradictory pairs\n" in err
    assert err.endswith("Nothing was verified; the next run starts anew.\n")
    assert "bytes of commit" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_kill_leaves_the_checkout_as_it_was_and_the_next_one_starts_anew(
    root: Path, number: signal.Signals
) -> None:
    before = contents(root)
    process = start(root, WANTED="hang")
    pid = int(written(root / ".work/verify/.work/baseline/pid"))
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert contents(root) == before
    eventually(lambda: not is_alive(pid))
    code, _, err = verify(root)
    assert code == 0, err

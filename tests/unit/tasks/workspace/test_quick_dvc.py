"""DVC as our drivers run it: the dvc.lock that DVC writes itself is the one to compare with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from tasks.workspace.dvc_process import DVC
from tasks.workspace.dvc_rwlock import repro_processes
from tasks.workspace.quick_dvc import HEAD, with_entry

PLAIN = (sys.executable, "-m", "dvc")
PIPELINE = """\
rounds: {r1: 1e-05, r2: 0.1}
long: {text: a line that is longer than the eighty letters after which the writer breaks lines
    in two, and 'quoted: too', names: [a, "1", null, é, 2.50], empty: {}, none: null, yes: "no"}
"""
STAGES = """\
stages:
  first:
    cmd: echo one > first.txt
    params: [long]
    outs: [first.txt]
  each:
    foreach: ${rounds}
    do:
      cmd: mkdir each-${key} && echo ${item} > each-${key}/x
      deps: [first.txt]
      params: [rounds]
      outs: ['each-${key}']
"""


def run(root: Path, *command: str) -> str:
    site = {"DVC_SITE_CACHE_DIR": str(root / ".dvc/tmp/site"), "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **site}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(root), "")


def build(root: Path) -> Path:
    root.mkdir()
    Repo.init(str(root), no_scm=True)
    (root / "params.yaml").write_text(PIPELINE, encoding="utf-8")
    (root / "dvc.yaml").write_text(STAGES, encoding="utf-8")
    return root


def lock(root: Path) -> str:
    return (root / "dvc.lock").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_lock_file_is_that_of_dvc_and_so_is_what_it_says(tmp_path: Path) -> None:
    roots = build(tmp_path / "plain"), build(tmp_path / "quick")
    for old, new in (("", ""), ("0.1", "0.25"), ("names: [a,", "names: [b,")):
        for root in roots:
            text = (root / "params.yaml").read_text(encoding="utf-8").replace(old, new, 1)
            (root / "params.yaml").write_text(text, encoding="utf-8")
        said = [
            run(root, *command, "repro") for root, command in zip(roots, (PLAIN, DVC), strict=True)
        ]
        assert lock(roots[0]) == lock(roots[1])
        assert said[0] == said[1]
        assert "Updating lock file 'dvc.lock'" in said[0]


def test_entries_of_other_stages_are_not_written_again(tmp_path: Path) -> None:
    root = build(tmp_path / "root")
    run(root, *PLAIN, "repro", "--quiet")
    quoted = lock(root).replace("cmd: echo one > first.txt", "cmd: 'echo one > first.txt'")
    (root / "dvc.lock").write_text(quoted, encoding="utf-8")
    run(root, *DVC, "repro", "--quiet", "--single-item", "--force", "each@r2")
    assert lock(root) == quoted  # DVC itself would leave the quotes out.


@pytest.mark.long
def test_a_name_in_quotes_is_the_stage_of_that_name(tmp_path: Path) -> None:
    """Somebody has edited the file; with the name twice, DVC would never read it again."""
    root = build(tmp_path / "root")
    run(root, *PLAIN, "repro", "--quiet")
    quoted = lock(root).replace("each@r2:", "'each@r2':")
    (root / "dvc.lock").write_text(quoted, encoding="utf-8")
    run(root, *DVC, "repro", "--quiet", "--single-item", "--force", "each@r2")
    assert list(YAML(typ="safe").load(lock(root))["stages"]) == ["first", "each@r1", "each@r2"]
    assert "up to date" in run(root, *PLAIN, "status")


def test_only_the_entry_is_exchanged_or_added() -> None:
    text = f"{HEAD}  a:\n    cmd: x\n  b@r1:\n    cmd: y\n    outs:\n    - path: z\n"
    assert with_entry(text, f"{HEAD}  a:\n    cmd: new\n") == text.replace("cmd: x", "cmd: new")
    assert with_entry(text, f"{HEAD}  b:\n    cmd: new\n") == f"{text}  b:\n    cmd: new\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: '2.0'\nstages: {}\n",
        f"{HEAD}  # ours\n  a:\n    cmd: x\n",
        f"{HEAD}  a:\n    cmd: x\ndatasets: []\n",
        f"{HEAD}  a:\n    cmd: x\n\n",
        f"{HEAD}  a:\n    cmd: x",
        f"{HEAD}  a: {{cmd: x}}\n",
        f"{HEAD}  a:\n    cmd: x\n  a:\n    cmd: y\n",
        f"{HEAD}  'a':\n    cmd: x\n",
        f'{HEAD}  "a":\n    cmd: x\n',
        f"{HEAD}  a:\n    cmd: x\n    params: &id001 [1]\n  b:\n    params: *id001\n",
    ],
)
def test_a_file_of_another_layout_is_left_to_dvc(text: str) -> None:
    assert with_entry(text, f"{HEAD}  a:\n    cmd: new\n") is None


@pytest.mark.long
def test_a_list_in_two_places_is_left_to_dvc(tmp_path: Path) -> None:
    roots = build(tmp_path / "plain"), build(tmp_path / "quick")
    for root, command in zip(roots, (PLAIN, DVC), strict=True):
        shared = PIPELINE.replace("names: [a,", "twice: &x [1], again: *x, names: [a,")
        stages = STAGES.replace("params: [rounds]", "params: [rounds, long]")
        (root / "dvc.yaml").write_text(stages, encoding="utf-8")
        (root / "params.yaml").write_text(shared, encoding="utf-8")
        run(root, *command, "repro", "--quiet")
        (root / "params.yaml").write_text(shared.replace("[1]", "[2]"), encoding="utf-8")
        run(root, *command, "repro", "--quiet")
    assert "&id002" in lock(roots[0])
    assert lock(roots[0]) == lock(roots[1])
    assert YAML(typ="safe").load(lock(roots[0]))["stages"]["first"]


def test_it_is_known_as_a_dvc_that_runs_here(tmp_path: Path) -> None:
    root = build(tmp_path / "root")
    stages = "stages:\n  wait: {cmd: echo started && cat, outs: [x]}\n"
    (root / "dvc.yaml").write_text(stages, encoding="utf-8")
    process = subprocess.Popen(
        [*DVC, "repro", "--quiet"],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        assert repro_processes(root) == [process.pid]
    finally:
        process.communicate()

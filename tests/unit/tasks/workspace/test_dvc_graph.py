"""Which stages are stale, and why: against a DVC repository of three stages."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.workspace.dvc_graph import (
    DvcBusyError,
    GraphError,
    changes,
    in_words,
    read_graph,
    with_dependents,
)

PIPELINE = """
stages:
  one:
    cmd: cp input.txt one
    deps: [input.txt]
    params: [run, ppo]
    outs: [one]
  two:
    cmd: cp one two
    deps: [one]
    outs: [two]
    meta: {gpu: true}
  other:
    cmd: echo > other
    params: [final]
    outs: [other]
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("graph")
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text("[core]\n  no_scm = true\n  analytics = false\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "params.yaml").write_text("run: {seed: 1}\nppo: {kl: {coef: 0.1}, lr: 2}\nfinal: r1\n")
    (root / "input.txt").write_text("one")
    command = [sys.executable, "-m", "dvc", "repro", "--quiet"]
    subprocess.run(command, cwd=root, check=True, env={"PATH": "/usr/bin:/bin"})
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "root"
    subprocess.run(["cp", "--recursive", "--preserve", str(template), str(copy)], check=True)
    return copy


def test_after_a_run_nothing_is_stale(root: Path) -> None:
    graph = read_graph(root)

    assert graph.needs == {"one": set(), "two": {"one"}, "other": set()}
    assert graph.gpu == {"two"}
    assert graph.stale == set()
    assert changes(root) == {}


def test_a_changed_file_makes_its_stage_stale_and_all_that_follow(root: Path) -> None:
    (root / "input.txt").write_text("two")

    assert read_graph(root).stale == {"one", "two"}
    assert changes(root) == {"one": ("input.txt",)}


def test_a_changed_parameter_is_named_by_its_whole_key(root: Path) -> None:
    params = root / "params.yaml"
    params.write_text("run: {seed: 1}\nppo: {kl: {coef: 0.2}, lr: 2, new: 1}\nfinal: r2\n")

    assert changes(root) == {
        "one": ("params.yaml: ppo.kl.coef, ppo.new",),
        "other": ("params.yaml: final",),
    }


def test_a_lost_output_a_new_command_and_a_new_stage_are_distinguished(root: Path) -> None:
    (root / "other").unlink()
    text = PIPELINE.replace("cp one two", "cp  one two")
    text += "  third: {cmd: echo > third, deps: [input.txt], outs: [third]}\n"
    (root / "dvc.yaml").write_text(text)

    assert changes(root) == {
        "other": ("other: deleted",),
        "two": ("its command or its list of files",),
        "third": ("never ran",),
    }


def test_the_paths_do_not_depend_on_the_folder_that_one_works_in(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "input.txt").write_text("two")
    monkeypatch.chdir("/")
    assert changes(root) == {"one": ("input.txt",)}


def test_what_dvc_cannot_read_is_said_in_dvcs_words(root: Path) -> None:
    (root / "dvc.yaml").write_text("stages: {one: {outs: []}}")
    with pytest.raises(GraphError, match=r"dvc\.yaml"):
        changes(root)


def test_a_lock_of_dvc_is_not_taken_for_a_broken_pipeline(root: Path) -> None:
    script = "import time; from dvc.repo import Repo, lock_repo\n"
    script += "with Repo('.') as r, lock_repo(r): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            with pytest.raises(DvcBusyError, match="another DVC command works here"):
                changes(root)
        finally:
            process.kill()


def test_dependents_are_found_however_far_away() -> None:
    needs = {"d": {"c"}, "c": {"b"}, "b": {"a"}, "a": set(), "x": {"y"}, "y": set()}
    assert with_dependents({"b"}, needs) == {"b", "c", "d"}


def test_stages_with_the_same_reason_are_named_together() -> None:
    kl = ("params.yaml: ppo.kl_coef",)
    found = {"ppo@r1": kl, "sft": ("a.py", "b.py", "c.py", "d.py", "e.py"), "ppo@r2": kl}
    assert in_words(found) == (
        "ppo@r1, ppo@r2 (params.yaml: ppo.kl_coef); sft (a.py, b.py, c.py and 2 more)"
    )

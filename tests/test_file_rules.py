"""Files have names that say something, are short, and do nothing when they are imported."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_files import BENCHMARKS, EXPERIMENTS, MODULES, PAGE_FILES, ROOT

FORBIDDEN_NAMES = {
    "base", "callbacks", "common", "core", "functions", "helper", "helpers", "lib", "manager",
    "managers", "misc", "registry", "shared", "stuff", "tools", "util", "utils",
}  # fmt: skip
"""Names that say nothing of what is inside, so that everything ends up there."""

NAMED_AFTER_THE_STAGE = {"tasks/base.py", "rlhf/params/base.py"}
"""Here `base` is a word of the subject: the base model."""

MAX_LINES = 300


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    found = {path for path in MODULES if FORBIDDEN_NAMES & set(Path(path).with_suffix("").parts)}

    assert found == NAMED_AFTER_THE_STAGE


def test_the_map_of_rlhf_names_every_module_once() -> None:
    """In its docstring, a line each: names, then what they are."""
    text = (ROOT / "rlhf/__init__.py").read_text(encoding="utf-8")
    listed = re.findall(r"^    ((?:\w+, )*\w+) {1,}\S", text, re.MULTILINE)
    named = sorted(name for names in listed for name in names.split(", "))
    there = sorted(
        path.stem
        for path in (ROOT / "rlhf").iterdir()
        if path.stem != "__init__" and not path.name.startswith((".", "__pycache__"))
    )

    assert named == there


MAX_FUNCTION = 60


def test_no_function_has_more_than_60_lines() -> None:
    """Counted from `def` to its last line."""
    long = {
        f"{path}: {node.name}"
        for path in [*MODULES, *BENCHMARKS, *EXPERIMENTS]
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION
    }

    assert long == set()


def test_no_file_has_more_than_300_lines() -> None:
    paths = [*MODULES, *BENCHMARKS, *EXPERIMENTS, *PAGE_FILES]
    lines = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths}

    assert {path for path, count in lines.items() if count > MAX_LINES} == set()


ASKS_FIRST = "tasks/__init__.py"
"""Asks to die with DVC before a stage's seconds of imports; docs/decisions/0006 says why."""


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.endswith("__init__.py") and path != ASKS_FIRST]
)
def test_a_package_file_holds_only_its_docstring(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))

    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


@pytest.mark.long
def test_importing_any_module_shows_nothing_and_writes_nothing(tmp_path: Path) -> None:
    names = [path.removesuffix(".py").replace("/", ".") for path in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    if importlib.util.find_spec("triton") is None:  # It comes with torch for CUDA alone.
        names.remove("rlhf.gpu_attention")
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir(), home.mkdir()
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", code, *names],
        cwd=here,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(here.iterdir()) == []

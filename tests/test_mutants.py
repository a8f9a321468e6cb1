"""`make mutants` takes half an hour; that what it names is there is tested here in no time."""

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.mutants import COPIED, MODULES, SECOND

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}
UNIT_TESTS = {name: [f"tests/unit/rlhf/{test}" for test in MODULES[name]] for name in MODULES}
PAGE = (ROOT / "docs/correctness.md").read_text(encoding="utf-8").partition("## Mutants")[2]


@pytest.mark.parametrize("module", MODULES)
def test_a_mutated_module_and_its_tests_exist(module: str):
    paths = [f"rlhf/{module}.py", *UNIT_TESTS[module]]

    assert [path for path in paths if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("path", sorted({*SECOND, *chain(*UNIT_TESTS.values())}))
def test_the_copy_that_is_mutated_has_every_package_that_a_test_imports(path: str):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [
        alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    ]
    named = {str(module).partition(".")[0] for module in modules}

    assert (named & PACKAGES) - set(COPIED) == set()


def test_the_page_names_the_modules_that_are_mutated():
    first, _, rows = PAGE.partition(": an operator")
    named = set(re.findall(r"`(\w+)`", first))
    explained = set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE))

    assert named == set(MODULES)
    assert explained <= named

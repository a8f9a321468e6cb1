"""The house rules that no compiler holds: floors, one definition of an idea, tests of what runs.

Modules are read, not imported.
"""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_files import EXPERIMENTS, MODULES, ROOT

# --- Floors --------------------------------------------------------------------------------------


def lint_imports(root: Path) -> "subprocess.CompletedProcess[str]":
    code = "from importlinter.cli import lint_imports_command as lint; lint()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--no-logo"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_floors_hold() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.fixture
def empty_modules(tmp_path: Path) -> Path:
    """All modules of the project, each an empty file, and the contracts that hold for them."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path in MODULES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("tasks/running/stage.py", "import prefect"),
        ("rlhf/kl.py", "import mlflow"),
        ("preferences/judging.py", "import dvc.repo"),
        ("feedback/store/rounds.py", "import mlflow"),
        ("tasks/validate.py", "import great_expectations"),
        ("rlhf/kl.py", "import tasks.running.stage"),
        ("rlhf/ppo.py", "import rlhf.sft"),
        ("rlhf/sft.py", "import preferences.records"),
        ("preferences/judging.py", "import feedback.quality.annotators"),
        ("feedback/quality/annotators.py", "import preferences.judging"),
        ("tasks/workspace/files.py", "import tasks.tracking.spool"),
        ("tasks/running/stage.py", "import tasks.sft"),
        ("feedback/store/rounds.py", "import feedback.page.server"),
    ],
)
def test_each_way_of_breaking_a_floor_or_a_room_is_noticed(
    empty_modules: Path, file: str, line: str
) -> None:
    (empty_modules / file).write_text(f"{line}\n")

    done = lint_imports(empty_modules)

    assert done.returncode == 1
    assert " 1 broken" in done.stdout, done.stdout


def test_two_modules_that_import_each_other_are_noticed(empty_modules: Path) -> None:
    (empty_modules / "rlhf/kl.py").write_text("import rlhf.masked\n")
    (empty_modules / "rlhf/masked.py").write_text("import rlhf.kl\n")

    assert " 1 broken" in lint_imports(empty_modules).stdout


def test_feedback_may_import_records_statistics_and_tombstones_of_preferences(
    empty_modules: Path,
) -> None:
    (empty_modules / "preferences/statistics.py").write_text("import preferences.judging\n")
    names = ("records", "statistics", "withdrawals")
    allowed = "".join(f"import preferences.{name}\n" for name in names)
    (empty_modules / "feedback/page/lead.py").write_text(allowed)

    done = lint_imports(empty_modules)

    assert " 0 broken" in done.stdout, done.stdout


# --- Ideas ---------------------------------------------------------------------------------------

IDEAS = {
    "Judgment": ["preferences/records.py"],
    "pair_id": ["preferences/records.py"],
    "text_hash": ["preferences/records.py"],
    "latest": ["preferences/records.py"],
    "oriented": ["preferences/records.py"],
    "krippendorff_alpha": ["preferences/statistics.py"],
    "cohen_kappa": ["preferences/statistics.py"],
}
"""Class or function -> the files that may define it."""

WILSON = {"preferences/statistics.py", "rlhf/intervals.py"}
"""Where Wilson's interval is computed. Twice, for `rlhf` must run without the other packages."""


def test_each_idea_has_one_definition() -> None:
    found: dict[str, list[str]] = {name: [] for name in IDEAS}
    for path in MODULES:
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in found:
                found[node.name].append(path)

    assert found == IDEAS


def test_wilsons_interval_is_computed_only_in_preferences_and_in_rlhf() -> None:
    quantile = re.compile(r"1\.95996\d+")
    found = {path for path in MODULES if quantile.search((ROOT / path).read_text(encoding="utf-8"))}

    assert found == WILSON


# --- What is tested is what runs -----------------------------------------------------------------


def used_names(path: str) -> set[str]:
    """What the code of a file uses: `name`, `.attribute`, and `module:name` for what it imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found |= {f".{node.attr}", f"{ast.unparse(node.value)}.{node.attr}"}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return found


USED = {path: used_names(path) for path in [*MODULES, *EXPERIMENTS]}


CALLED_BY_TORCH = {"forward", "allocate", "get_mask_sizes"}
"""Of a module, of a collective of FSDP; and by transformers, of a layer of its cache."""


@pytest.mark.parametrize("path", [path for path in MODULES if path.startswith("rlhf/")])
def test_everything_public_in_rlhf_has_a_caller_outside_of_the_tests(path: str) -> None:
    """A method counts as called where any code calls one of its name; some are torch's to call.

    What only tests call is a second implementation: the tests then say nothing of the first.
    """
    module = path.removesuffix(".py").replace("/", ".")
    lonely = []
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        name, as_attribute = node.name, f"{module.rpartition('.')[2]}.{node.name}"
        wanted = {f"{module}:{name}", as_attribute}
        if name not in USED[path] and not any(wanted & used for used in USED.values()):
            lonely.append(name)
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(method, ast.FunctionDef) or method.name.startswith("__"):
                continue
            called = any(f".{method.name}" in used for used in USED.values())
            if not called and method.name not in CALLED_BY_TORCH:
                lonely.append(f"{name}.{method.name}")

    assert lonely == []

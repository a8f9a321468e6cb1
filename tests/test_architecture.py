"""The house rules that no compiler holds: floors, one name per stage, truthful dependencies.

`dvc.yaml`, `params.yaml` and `tasks/` describe one pipeline; here they are compared. Modules are
read, not imported, except where importing is the point.
"""

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.own_data.files import MARK, Named, with_named
from tasks.params.loading import Params

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("experiments", "flows", "tasks", "rlhf", "preferences", "feedback", "data")
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
)

BENCHMARKS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/**/*.py"))
EXPERIMENTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/**/*.py"))
PAGE_FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for ending in ("css", "html", "j2", "js")
    for path in (ROOT / package).rglob(f"*.{ending}")
)
"""Templates, styles and scripts of the labelling page, the report and the data docs."""

# --- What a stage depends on ---------------------------------------------------------------------

ROOMS_OF_ORCHESTRATION = ("running", "tracking", "params", "workspace")
"""Rooms of tasks/ that move results without making them."""

MAKE_RESULTS = {"tasks/params/changed.py", "tasks/params/prepare.py"}
"""Those in these rooms that results depend on: what the report shows, and `prepare`'s defaults."""

ORCHESTRATION = {
    path
    for path in MODULES
    if path.startswith(tuple(f"tasks/{room}/" for room in ROOMS_OF_ORCHESTRATION))
    and path not in MAKE_RESULTS
} | {"feedback/people.py"}
"""Code that is no dependency of a stage: a log line that changes must not train a model again.
Neither is what only it imports. Nor is the labelling page's store: how people are asked changes
nothing of what they said."""

READERS = {
    "preferences/opening.py",
    "preferences/reader.py",
    "preferences/records.py",
    "preferences/row_values.py",
    "preferences/schemas.py",
    "preferences/loading.py",
}
"""File reading. It counts in the stages whose work it is to read strictly (READING_STAGES); behind
them files are known to be sound, and how they are read changes no result."""

TEMPLATES = (".css", ".j2")
"""Files that the report's page is made from; its module reads them, which no import shows."""

READING_STAGES = {"prepare", "label", "validate"}

EXTRA_PARAMS = {
    "sample": {"label.annotators"},
    "evaluate": {"label", "ppo"},
    "test": {"final", "label", "ppo"},
    "validate": {"label.annotators", "reward.max_tokens"},
    "best_of_n": {"evaluate", "ppo", "rounds", "final"},
}
"""Beside `run` and the stage's own section."""

DATA_CONSTANTS = {"baseline": "BASELINE_INPUTS", "evaluate": "ROUND_INPUTS", "test": "TEST_INPUTS"}
"""The three stages of tasks/evaluate.py; the others have INPUTS."""


def read_yaml(name: str) -> Any:
    """Without the lines that a user's own files have in dvc.yaml: those are no one's imports."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return YAML(typ="safe").load("".join(line for line in lines if MARK not in line))


def stage_definitions() -> dict[str, dict[str, Any]]:
    """Stage -> its definition, templates of rounds included, `${...}` not yet filled in."""
    stages = read_yaml("dvc.yaml")["stages"]
    return {name: entry.get("do", entry) for name, entry in stages.items()}


STAGES = stage_definitions()
STAGE_MODULES = {name: entry["cmd"].split()[3].partition(".")[2] for name, entry in STAGES.items()}
"""Stage -> module below tasks/, from its command."""


def imported_modules(path: str) -> Iterator[str]:
    """Files of the project that a file imports, wherever in it."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = name.replace(".", "/") + ".py"
            if name.partition(".")[0] in PACKAGES and (ROOT / file).is_file():
                yield file


def code_of(stage: str) -> set[str]:
    """The files that a stage's results come from: all that its module imports, step by step."""
    seen: set[str] = set()
    todo = [f"tasks/{STAGE_MODULES[stage]}.py"]
    while todo:
        path = todo.pop()
        if path not in seen and path not in ORCHESTRATION:
            seen.add(path)
            todo += imported_modules(path)
    return seen if stage in READING_STAGES else seen - READERS


def deps_of(stage: str, *, code: bool) -> set[str]:
    deps = {dep for dep in STAGES[stage]["deps"] if not dep.endswith(TEMPLATES)}
    return {dep for dep in deps if dep.endswith(".py") == code}


def outs_of(stage: str) -> set[str]:
    """Paths of the outputs, also of those with settings such as `cache: false`."""
    return {path for out in STAGES[stage]["outs"] for path in ([out] if type(out) is str else out)}


def as_template(path: str) -> str:
    """DVC's `${key}` and `${item.policy}` as the modules write them: `{key}`, `{policy}`."""
    return re.sub(r"\$\{(?:item\.)?(\w+)\}", r"{\1}", path)


def constant(module: str, name: str) -> Any:
    """A module-level constant, read from the source."""
    for node in ast.parse((ROOT / "tasks" / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    return None


def texts_in(module: str) -> set[str]:
    """All texts in a module's source; of f-strings the template, `{str(key)}` as `{key}`."""
    tree = ast.parse((ROOT / "tasks" / f"{module}.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.add(ast.unparse(node)[2:-1])
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_the_code_deps_of_a_stage_are_exactly_what_its_module_imports(stage: str) -> None:
    assert deps_of(stage, code=True) == code_of(stage)


TRAINING = {"rlhf/optimisers.py", "rlhf/muon.py", "rlhf/params/optimiser.py"}
FOREIGN = {
    "base": {"rlhf/ppo_losses.py", "rlhf/preference_loss.py", "rlhf/kl.py"},
    "sft": {"rlhf/ppo_losses.py", "rlhf/preference_loss.py", "rlhf/kl.py"},
    "reward": {"rlhf/ppo_losses.py", "rlhf/language_model_loss.py", "rlhf/kl.py"},
    "ppo": {"rlhf/reward.py", "rlhf/preference_loss.py", "rlhf/language_model_loss.py"},
    **{
        stage: TRAINING | {"rlhf/reward.py", "rlhf/rollouts.py", "rlhf/lora.py"}
        for stage in ("sample", "label", "baseline", "evaluate", "test", "best_of_n")
    },
}
"""Stage -> what it must not depend on: another training's losses, or any training at all."""


def test_own_files_in_dvc_yaml_break_none_of_these_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written there as soon as params.yaml names them."""
    text, before = (ROOT / "dvc.yaml").read_text(encoding="utf-8"), read_yaml("dvc.yaml")
    own = [Named("prepare", "prepare.files.prompts", "mine/prompts.jsonl")]
    (tmp_path / "dvc.yaml").write_text(with_named(text, own, ROOT / "dvc.yaml"), encoding="utf-8")
    assert "mine/prompts.jsonl" in (tmp_path / "dvc.yaml").read_text(encoding="utf-8")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert read_yaml("dvc.yaml") == before


@pytest.mark.parametrize("stage", FOREIGN)
def test_a_stage_depends_on_no_training_but_its_own(stage: str) -> None:
    assert code_of(stage) & FOREIGN[stage] == set()
    assert {path for path in FOREIGN[stage] if not (ROOT / path).is_file()} == set()


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_depends_on_orchestration_or_on_documents(stage: str) -> None:
    deps = deps_of(stage, code=True) | deps_of(stage, code=False)

    assert not deps & ORCHESTRATION
    assert not {dep for dep in deps if dep.startswith(("flows", "tests", "docs"))}
    assert not {dep for dep in deps if dep.endswith((".md", ".toml", ".yaml", ".txt"))}


def test_the_files_excluded_from_deps_exist() -> None:
    assert {path for path in ORCHESTRATION | READERS if not (ROOT / path).is_file()} == set()


@pytest.mark.parametrize("stage", STAGES)
def test_the_inputs_a_module_declares_are_the_data_deps_in_dvc_yaml(stage: str) -> None:
    declared = constant(STAGE_MODULES[stage], DATA_CONSTANTS.get(stage, "INPUTS")) or ()

    assert {as_template(dep) for dep in deps_of(stage, code=False)} == set(declared)
    assert len(set(declared)) == len(declared)


@pytest.mark.parametrize("stage", STAGES)
def test_every_output_in_dvc_yaml_is_a_path_in_the_stages_module(stage: str) -> None:
    written = texts_in(STAGE_MODULES[stage])

    assert {as_template(out) for out in outs_of(stage)} <= written


def round_params(stage: str) -> set[str]:
    """The keys of its round that a stage's deps take paths from.

    DVC does not miss a dep of dvc.lock that dvc.yaml no longer has: a round that starts from
    models/sft, a dep anyway, would be up to date with the policy that it started from before.
    """
    keys = re.findall(r"\$\{item\.(\w+)\}", " ".join(STAGES[stage]["deps"]))
    return {f"rounds.${{key}}.{key}" for key in keys}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_run_and_its_own_section_of_the_params_only(stage: str) -> None:
    own = {"run", STAGE_MODULES[stage]} | EXTRA_PARAMS.get(stage, set()) | round_params(stage)
    # The report lists the parameters that differ from their defaults, so it depends on all.
    expected = set(read_yaml("params.yaml")) if stage == "report" else own

    assert set(STAGES[stage]["params"]) == expected


# --- One name per stage --------------------------------------------------------------------------


@pytest.mark.parametrize("section", sorted(set(STAGE_MODULES.values())))
def test_a_changed_default_makes_its_stage_stale(section: str) -> None:
    """The dataclass of a section is a dep of its stage, or params.yaml spells every key out."""
    kind = typing.get_type_hints(Params)[section]
    file = kind.__module__.replace(".", "/") + ".py"
    missing = {field.name for field in dataclasses.fields(kind)} - set(
        read_yaml("params.yaml")[section]
    )

    assert not missing or file in code_of(section)


def test_every_param_that_dvc_yaml_names_is_in_params_yaml() -> None:
    # DVC takes no defaults: a key that only the dataclass has stops the whole pipeline.
    params = read_yaml("params.yaml")
    for stage, definition in stage_definitions().items():
        for key in definition["params"]:
            for name in params["rounds"] if "${key}" in key else [""]:
                value: Any = params
                for part in key.replace("${key}", name).split("."):
                    assert part in value, f"{stage}: {key} is not in params.yaml"
                    value = value[part]


def calls_of_run_stage() -> dict[str, list[ast.Call]]:
    """Module below tasks/ -> its calls of `run_stage`."""
    calls: dict[str, list[ast.Call]] = {}
    for path in (ROOT / "tasks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "run_stage":
                calls.setdefault(path.stem, []).append(node)
    return calls


def test_stage_names_are_module_names_but_for_the_two_other_stages_of_evaluate() -> None:
    renamed = {stage: module for stage, module in STAGE_MODULES.items() if stage != module}

    assert renamed == {"baseline": "evaluate", "test": "evaluate"}


def test_the_modules_that_run_a_stage_are_those_that_dvc_yaml_starts() -> None:
    assert set(calls_of_run_stage()) == set(STAGE_MODULES.values())


def test_every_module_runs_its_stage_under_its_own_name() -> None:
    sections = {
        (module, ast.literal_eval(call.args[0]))
        for module, calls in calls_of_run_stage().items()
        for call in calls
    }

    assert {module for module, section in sections if module != section} == set()


def test_the_sections_of_params_yaml_are_the_stage_modules() -> None:
    sections = set(read_yaml("params.yaml")) - {"run", "rounds", "final"}

    assert sections == set(STAGE_MODULES.values())


def test_no_shell_stays_between_dvc_and_a_stage() -> None:
    """Where one does (dash does), the stage lives on when dvc dies."""
    commands = {name: entry["cmd"].split()[:3] for name, entry in STAGES.items()}

    assert commands == {name: ["exec", "python", "-m"] for name in STAGES}


def test_stages_of_a_round_take_its_key_and_the_others_none() -> None:
    stages = read_yaml("dvc.yaml")["stages"]
    for name, entry in stages.items():
        takes_key = STAGES[name]["cmd"].endswith("--round ${key}")
        assert takes_key == (entry.get("foreach") == "${rounds}") == ("foreach" in entry), name


def test_what_rounds_start_from_in_params_yaml_is_an_output_of_a_stage() -> None:
    rounds = read_yaml("params.yaml")["rounds"]
    outs = {out for stage in STAGES for out in outs_of(stage)}
    made = {out.replace("${key}", key) for out in outs for key in rounds}
    wanted = {path for entry in rounds.values() for path in entry.values()}

    lacking = {path for path in wanted if not any(f"{path}/".startswith(f"{m}/") for m in made)}
    assert lacking == set()


def test_plots_show_every_round() -> None:
    pipeline = read_yaml("dvc.yaml")
    plotted = [path for plot in pipeline["plots"] for part in plot.values() for path in part["y"]]

    for key in read_yaml("params.yaml")["rounds"]:
        assert f"results/reward/{key}/history.csv" in plotted
        assert f"results/reward/{key}/reliability.csv" in plotted
        # Score, KL, entropy, clip fraction and explained variance.
        assert plotted.count(f"results/ppo/{key}/history.csv") == 5


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


CALLED_BY_TORCH = {"forward", "allocate"}
"""Of a module, and of a collective of FSDP."""


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


# --- Files ---------------------------------------------------------------------------------------

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


def test_importing_any_module_shows_nothing_and_writes_nothing(tmp_path: Path) -> None:
    names = [path.removesuffix(".py").replace("/", ".") for path in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
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

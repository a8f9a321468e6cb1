"""A stage of dvc.yaml depends on all that its results come from, and on nothing else."""

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.own_data.files import Named, with_named
from tasks.params.loading import Params
from tasks.params.rules import NAMED_ALONE
from tests.defined_stages import STAGE_MODULES, STAGES, outs_of, read_yaml, stage_definitions
from tests.source_files import MODULES, PACKAGES, ROOT

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
    monkeypatch.setattr("tests.defined_stages.ROOT", tmp_path)
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


def test_a_key_that_a_stage_names_alone_is_asked_for_before_dvc_misses_it() -> None:
    """Of a round every key is asked for."""
    keys = {key for stage in stage_definitions().values() for key in stage["params"]}

    assert {key for key in keys if "." in key and "${key}" not in key} == set(NAMED_ALONE)

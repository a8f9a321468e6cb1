"""A stage has one name in dvc.yaml, params.yaml and tasks/, and rounds and plots are complete."""

import ast

from tasks.reporting.page import PANELS
from tests.defined_stages import STAGE_MODULES, STAGES, outs_of, read_yaml
from tests.source_files import ROOT


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


OUTPUTS = {
    "prepare": {"data/prepared"},
    "base": {"models/base", "results/base"},
    "sft": {"models/sft", "results/sft"},
    "baseline": {"results/baseline"},
    "sample": {"data/rounds/${key}/comparisons.jsonl", "results/sample/${key}"},
    "label": {"data/rounds/${key}/judgments.jsonl", "results/label/${key}"},
    "validate": {"data/rounds/${key}/preferences", "results/validate/${key}"},
    "reward": {"models/rounds/${key}/reward", "results/reward/${key}"},
    "ppo": {"models/rounds/${key}/policy", "results/ppo/${key}"},
    "evaluate": {"results/evaluate/${key}"},
    "test": {"results/test"},
    "best_of_n": {"results/best_of_n"},
    "report": {"reports/results.json", "reports/index.html", "metrics"},
}


def test_dvc_keeps_all_outputs_but_for_the_headline_numbers_which_git_keeps() -> None:
    """What is no output is written, and is not there after a checkout or a pull."""
    assert {stage: outs_of(stage) for stage in STAGES} == OUTPUTS
    settings = [out for entry in STAGES.values() for out in entry["outs"] if type(out) is not str]
    assert settings == [{"metrics": {"cache": False}}]
    assert read_yaml("dvc.yaml")["metrics"] == ["metrics/final.json", "metrics/rounds"]


def test_the_two_other_stages_of_evaluate_name_their_policy() -> None:
    said = {name: STAGES[name]["cmd"].partition("evaluate ")[2] for name in ("baseline", "test")}
    assert said == {"baseline": "--policy sft", "test": "--policy final"}


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


def test_curves_of_ppo_are_among_those_of_the_report() -> None:
    plots = read_yaml("dvc.yaml")["plots"]
    found = [item for plot in plots for part in plot.values() for item in part["y"].items()]
    drawn = {column for path, column in found if path.startswith("results/ppo/")}
    assert drawn <= {metric for metric, _, _ in PANELS}

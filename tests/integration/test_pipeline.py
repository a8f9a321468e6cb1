"""The whole pipeline on a tiny world: the real stages, two rounds, once for all tests.

The repository is copied, its parameters are made tiny, and the Prefect flow runs in it. Everything
after that looks at what is there, or works in a clone that pulled it.
"""

import hashlib
import json
import platform
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from ruamel.yaml import YAML

from tasks.reporting.summary import cpu_name
from tests.integration.tiny_checkout import ROOT, World, outputs, unrun_fixture  # noqa: F401

pytestmark = pytest.mark.long

ROUND_STAGES = ("sample", "label", "validate", "reward", "ppo", "evaluate")
STAGES = {
    "prepare", "base", "sft", "baseline", "test", "best_of_n", "report",
    *(f"{stage}@{key}" for stage in ROUND_STAGES for key in ("r1", "r2")),
}  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """The world after the flow, and what the flow wrote."""

    world: World
    log: str


@pytest.fixture(scope="session")
def finished(unrun: World) -> Finished:
    log = unrun.run(sys.executable, "-m", "flows.local")
    unrun.git("add", "--all")
    unrun.git("commit", "--quiet", "-m", "run")
    return Finished(unrun, log)


@pytest.fixture(scope="session")
def world(finished: Finished) -> World:
    return finished.world


@pytest.fixture(scope="session")
def clone(world: World) -> World:
    """A second clone that pulled the outputs from a folder that the first one pushed them to."""
    remote = world.root.parent / "remote"
    world.dvc("push", "--remote", add_remote(world, remote))
    second = world.root.parent / "second"
    world.git("clone", "--quiet", str(world.root), str(second))
    other = World(second, world.environment)
    other.dvc("pull", "--remote", add_remote(other, remote))
    return other


def add_remote(world: World, folder: Path) -> str:
    world.dvc("remote", "add", "--local", "folder", str(folder))
    return "folder"


def ran(log: str) -> set[str]:
    """The stages that DVC says it ran."""
    return set(re.findall(r"Running stage '([^']+)'", log))


# --- The flow ------------------------------------------------------------------------------------


def test_the_flow_runs_every_stage_once_and_says_that_all_is_done(finished: Finished):
    assert ran(finished.log) == STAGES
    assert all(finished.log.count(f"Running stage '{stage}'") == 1 for stage in STAGES)
    assert f"All {len(STAGES)} stages are up to date." in finished.log


def test_every_stage_says_that_it_is_done_and_leaves_nothing_half_written(world: World):
    outcomes = [world.json(f".work/{stage}/outcome.json") for stage in STAGES]

    assert {outcome["stage"] for outcome in outcomes} == STAGES
    assert {(outcome["status"], outcome["code"]) for outcome in outcomes} == {("done", 0)}
    assert len({outcome["execution"] for outcome in outcomes}) == 1
    assert list(world.root.glob(".work/*/staging")) == []


def test_the_lines_of_the_stages_are_in_the_flows_log(finished: Finished):
    assert re.search(r"base +8/8 steps  loss \+\d", finished.log)
    assert re.search(r"ppo@r2 +3/3 iterations  score", finished.log)


def test_the_summary_has_every_policy_and_reward_model_in_order(world: World):
    summary = world.json("reports/summary.json")

    assert [policy["name"] for policy in summary["policies"]] == ["sft", "r1", "r2"]
    assert [model["round"] for model in summary["reward_models"]] == ["r1", "r2"]
    assert summary["test"]["policy"] == "r2"
    assert summary["test"]["gold"]["n"] == summary["policies"][0]["gold"]["n"] == 16
    assert set(summary["seconds"]["stages"]) == STAGES
    assert 0 < max(summary["peak_rss_bytes"].values()) < 4 * 2**30


# --- The results hang together -------------------------------------------------------------------


def test_the_first_reward_model_has_no_accuracy_before_and_the_second_has(world: World):
    first, second = (world.json(f"results/reward/{key}/metrics.json") for key in ("r1", "r2"))

    assert first["accuracy_before"] is None
    assert 0 <= second["accuracy_before"]["mean"] <= 1
    assert second["pairs"] > first["pairs"]


def test_a_round_learns_from_all_preferences_so_far_and_asks_about_fresh_prompts(world: World):
    def rows(path: str) -> list[dict[str, Any]]:
        text = (world.root / path).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    first = rows("data/rounds/r1/preferences/train.jsonl")
    second = rows("data/rounds/r2/preferences/train.jsonl")
    fresh = rows("data/rounds/r2/comparisons.jsonl")

    assert first == [row for row in second if row["round"] == "r1"]
    assert {row["round"] for row in second} == {"r1", "r2"}
    assert not {row["prompt_id"] for row in first} & {row["prompt_id"] for row in fresh}


def test_every_model_says_what_it_was_made_from(world: World):
    lock = YAML(typ="safe").load(world.root / "dvc.lock")["stages"]
    made = {out["path"]: out["md5"] for stage in lock.values() for out in stage["outs"]}

    manifest = world.json("models/rounds/r2/policy/manifest.json")

    assert manifest["inputs"] == {
        path: made[path]
        for path in (
            "data/prepared", "models/rounds/r1/policy", "models/rounds/r2/reward", "models/sft",
        )
    }  # fmt: skip
    assert manifest["params"]["ppo"]["iterations"] == 3
    for name, entry in manifest["files"].items():
        content = (world.root / "models/rounds/r2/policy" / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            entry["size"],
            entry["sha256"],
        )


def test_training_changed_the_policy_from_round_to_round(world: World):
    weights = "model.safetensors"
    folders = ("models/base", "models/sft", "models/rounds/r1/policy", "models/rounds/r2/policy")
    assert len({outputs(world.root)[f"{folder}/{weights}"] for folder in folders}) == 4


def test_commit_times_and_runs_stand_on_a_page_beside_the_report(world: World):
    page = (world.root / "reports/run.html").read_text(encoding="utf-8")

    assert world.git("rev-parse", "HEAD~1").strip() in page
    assert world.json(".work/sft/outcome.json")["execution"] in page
    assert "ppo@r2" in page


def test_no_output_holds_a_time_a_path_a_machine_a_version_or_the_name_of_the_run(world: World):
    outcome = world.json(".work/sft/outcome.json")
    commit = world.git("rev-parse", "HEAD~1").strip()
    day = f"{datetime.fromtimestamp(outcome['ended_ms'] / 1000, UTC):%Y-%m-%d}"
    packages = ("torch", "transformers", "great-expectations", "dvc", "mlflow", "datasets")
    versions = [platform.python_version(), *map(version, packages)]
    texts = [outcome["execution"], commit, str(world.root), day, cpu_name(), *versions]
    private = [text.encode() for text in texts]

    found = {
        path
        for path in outputs(world.root)
        if any(text in (world.root / path).read_bytes() for text in private)
    }
    assert found == set()


OTHER_VERSIONS = """\
import importlib.abc, importlib.metadata, importlib.util, platform, sys
version = importlib.metadata.version
platform.python_version = lambda: "3.11.98"
importlib.metadata.version = lambda name: version(name) + (".post98" if name in NAMES else "")
NAMES = ("torch", "transformers", "great_expectations")
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in NAMES[1:]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module
        def execute_and_rename(module):
            execute(module)
            sys.modules[name].__version__ += ".post98"
        spec.loader.exec_module = execute_and_rename
        return spec
sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize.py under which Python and packages say that they are other releases."""


def test_another_path_time_and_release_of_python_and_packages_give_the_same_bytes(
    world: World, tmp_path: Path
):
    """By `make verify`, which runs all stages again in a clone."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSIONS)
    elsewhere = World(world.root, world.environment | {"PYTHONPATH": str(tmp_path)})
    lock = YAML(typ="safe").load(world.root / "dvc.lock")["stages"]
    count = sum(len(stage["outs"]) for stage in lock.values())

    said = elsewhere.run(sys.executable, "-m", "tasks.verify")

    commit = world.git("rev-parse", "--short=7", "HEAD").strip()
    assert f"All {count} outputs have the bytes of commit {commit}." in said
    assert ran(said) == STAGES
    assert f"| 3.11.98, {version('torch')}.post98 |" in said


# --- DVC -----------------------------------------------------------------------------------------


def test_a_second_repro_does_nothing_and_says_so(world: World):
    before = outputs(world.root)
    log = world.dvc("repro")

    assert ran(log) == set()
    assert "Data and pipelines are up to date." in log
    assert outputs(world.root) == before


def test_metrics_show_fits_a_terminal_and_begins_with_the_final_policy(world: World):
    lines = world.dvc("metrics", "show").splitlines()

    assert max(map(len, lines)) <= 120
    assert [line.split()[0] for line in lines] == [
        "Path", "metrics/final.json", "metrics/rounds/r1.json", "metrics/rounds/r2.json",
        "metrics/rounds/sft.json",
    ]  # fmt: skip
    gold = world.json("results/evaluate/r2/metrics.json")["gold"]["mean"]
    assert world.json("metrics/final.json")["gold"] == pytest.approx(gold, abs=0.005)


def test_a_fresh_checkout_shows_the_metrics_without_any_cache(world: World, tmp_path: Path):
    world.git("clone", "--quiet", str(world.root), str(tmp_path / "fresh"))
    fresh = World(tmp_path / "fresh", world.environment)

    assert fresh.dvc("metrics", "show") == world.dvc("metrics", "show")


def last_json(text: str) -> str:
    """The JSON object after whatever else was written."""
    return text[text.index("\n{") :] if "\n{" in text and not text.startswith("{") else text


def numbers(values: Any) -> Any:
    """What DVC keeps of a metrics file: no nulls."""
    if isinstance(values, dict):
        return {k: numbers(v) for k, v in values.items() if v is not None and numbers(v) != {}}
    return values


def test_plots_show_draws_the_curves_of_all_rounds_on_one_figure(world: World, tmp_path: Path):
    world.dvc("plots", "show", "--out", str(tmp_path))
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    drawn = json.loads(last_json(world.dvc("plots", "show", "--json")))["data"]

    for name in (
        "PPO score", "PPO KL to SFT", "PPO explained variance", "PPO clip fraction",
        "PPO entropy", "reward model loss", "SFT loss",
    ):  # fmt: skip
        assert f'"{name}"' in page or name in page
        # The points that are drawn: the legend also names the shipped list's third round.
        (figure,) = drawn[name]
        files = {str(point.get("filename")) for point in figure["content"]["data"]["values"]}
        rounds = {found[0] for file in files if (found := re.match(r"r\d(?=/)", file))}
        assert rounds == (set() if name == "SFT loss" else {"r1", "r2"}), name


def test_a_second_clone_that_pulls_gets_the_same_bytes_and_has_nothing_to_do(
    world: World, clone: World
):
    assert outputs(clone.root) == outputs(world.root)
    assert (clone.root / "dvc.lock").read_bytes() == (world.root / "dvc.lock").read_bytes()
    assert "up to date" in clone.dvc("status")


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("README.md", "#", "# A word more.", set()),
        # The evaluations read PPO's rewards, and DVC follows whole sections.
        (
            "params.yaml", "kl_coef: 0.04", "kl_coef: 0.5",
            {"ppo@r1", "ppo@r2", "evaluate@r1", "evaluate@r2", "test", "best_of_n", "report"},
        ),
        (
            "rlhf/muon.py", '"""', '"""A word more. ',
            {"base", "sft", *(f"{stage}@{k}" for stage in ("reward", "ppo") for k in ("r1", "r2"))},
        ),
        ("rlhf/ppo_losses.py", '"""', '"""A word more. ', {"ppo@r1", "ppo@r2"}),
    ],
)  # fmt: skip
def test_a_change_makes_stale_what_it_concerns(
    world: World, path: str, old: str, new: str, stale: set[str]
):
    """DVC names those that the change itself concerns; what follows from them runs after them."""
    file = world.root / path
    before = file.read_text(encoding="utf-8")
    assert old in before
    file.write_text(before.replace(old, new, 1), encoding="utf-8")
    try:
        assert set(json.loads(world.dvc("status", "--json"))) == stale
    finally:
        file.write_text(before, encoding="utf-8")


@dataclass(frozen=True)
class Changed:
    """The clone after another `kl_coef`, what DVC said, and the paths whose bytes changed."""

    world: World
    log: str
    paths: set[str]


@pytest.fixture(scope="session")
def changed(clone: World) -> Changed:
    """By `dvc exp run -S`, up to the evaluation of the first round."""
    before = outputs(clone.root)
    log = clone.dvc("exp", "run", "-S", "ppo.kl_coef=0.5", "evaluate@r1")
    after = outputs(clone.root)
    return Changed(clone, log, {path for path in after if before.get(path) != after[path]})


def test_after_a_change_of_kl_coef_only_ppo_and_what_follows_runs_again(changed: Changed):
    assert ran(changed.log) == {"ppo@r1", "evaluate@r1"}
    for stage in ("prepare", "base", "sft", "sample@r1", "label@r1", "validate@r1", "reward@r1"):
        assert f"Stage '{stage}' didn't change, skipping" in changed.log
    assert {path.partition("r1")[0] for path in changed.paths} == {
        "models/rounds/", "results/ppo/", "results/evaluate/",
    }  # fmt: skip
    assert "models/rounds/r1/policy/model.safetensors" in changed.paths
    assert "models/rounds/r1/reward/model.safetensors" not in changed.paths


def test_metrics_diff_has_the_numbers_of_a_stage_before_and_after(changed: Changed):
    """Of the files that are named and have changed."""
    files = [f"results/{stage}/r1/metrics.json" for stage in ("ppo", "evaluate", "reward")]
    shown = changed.world.dvc("metrics", "diff", "--json", "HEAD", "--targets", *files)
    difference = json.loads(last_json(shown))

    assert set(difference) == {"results/ppo/r1/metrics.json", "results/evaluate/r1/metrics.json"}
    coefficient = difference["results/ppo/r1/metrics.json"]["objective/kl_coef"]
    assert (coefficient["old"], coefficient["new"]) == (0.04, 0.5)


def test_the_documented_table_of_experiments_has_what_differs_and_little_else(changed: Changed):
    guide = (ROOT / "docs/how-to/compare-runs.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^dvc (exp show .+)$", guide, re.MULTILINE)

    everything = columns(changed.world, "exp", "show")
    shown = columns(changed.world, *shlex.split(command))

    assert len(everything) > 200
    assert shown == [
        *("Experiment", "rev", "typ", "Created"),  # In CSV; the first and the last on screen.
        *(f"metrics/final.json:{measure}" for measure in ("gold", "win", "kl")),
        "ppo.kl_coef",
    ]


def columns(world: World, *command: str) -> list[str]:
    """Of a table of DVC's."""
    said = world.dvc(*command, "--csv").splitlines()
    (head,) = (line for line in said if line.startswith("Experiment,"))
    return head.split(",")


# --- MLflow --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def runs(world: World) -> dict[str, Run]:
    """Stage -> MLflow run; the parent has its own name."""
    client = store(world)
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    found = client.search_runs([experiment.experiment_id])
    named = {run.data.tags.get("rlhf.stage", str(run.info.run_name)): run for run in found}
    assert len(named) == len(found)
    return named


def store(world: World) -> MlflowClient:
    return MlflowClient(f"sqlite:///{world.root}/.work/mlflow/mlflow.db")


def test_mlflow_has_a_run_per_stage_below_one_parent(world: World, runs: dict[str, Run]):
    execution = world.json(".work/sft/outcome.json")["execution"]
    (parent,) = set(runs) - STAGES

    assert set(runs) > STAGES
    assert runs[parent].data.tags["rlhf.execution"] == execution
    for stage in STAGES:
        assert runs[stage].data.tags["mlflow.parentRunId"] == runs[parent].info.run_id
        assert runs[stage].info.status == "FINISHED"


def test_a_run_has_params_tags_and_curves(world: World, runs: dict[str, Run]):
    run = runs["ppo@r2"]
    curve = store(world).get_metric_history(run.info.run_id, "objective/kl")

    assert run.data.params["ppo.kl_coef"] == "0.04"
    assert run.data.params["run.seed"] == "0"
    assert run.data.tags["round"] == "r2"
    assert run.data.tags["git.commit"] == world.git("rev-parse", "HEAD~1").strip()
    assert sorted({point.step for point in curve}) == [1, 2, 3]


def test_a_run_says_by_tags_what_went_in_and_what_came_out_as_dvc_has_it(
    world: World, runs: dict[str, Run]
):
    stages = YAML(typ="safe").load(world.root / "dvc.lock")["stages"]
    made = {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}
    tags = runs["ppo@r2"].data.tags

    taken = ("data/prepared", "models/sft", "models/rounds/r1/policy", "models/rounds/r2/reward")
    assert {name: tags[f"dvc.in.{name}"] for name in taken} == {name: made[name] for name in taken}
    given = [out["path"] for out in stages["ppo@r2"]["outs"]]
    assert {name: tags[f"dvc.out.{name}"] for name in given} == {name: made[name] for name in given}


def test_two_executions_with_another_kl_coef_stand_side_by_side_in_mlflow(
    world: World, changed: Changed, tmp_path: Path
):
    """The clone's spool goes to a copy of the store that has the first execution."""
    shutil.copy(world.root / ".work/mlflow/mlflow.db", tmp_path / "both.db")
    there = f"sqlite:///{tmp_path}/both.db"
    environment = changed.world.environment | {"MLFLOW_TRACKING_URI": there}
    World(changed.world.root, environment).run(sys.executable, "-m", "tasks.sync")

    client = MlflowClient(there)
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert sorted(run.data.params["ppo.kl_coef"] for run in parents) == ["0.04", "0.5"]
    assert len({run.info.run_name for run in parents}) == 2
    evaluated = {
        run.data.tags["mlflow.parentRunId"]: set(run.data.metrics)
        for run in runs
        if run.data.tags.get("rlhf.stage") == "evaluate@r1"
    }
    assert set(evaluated) == {run.info.run_id for run in parents}
    shared = set.intersection(*evaluated.values())
    assert {"gold.mean", "kl.mean", "win_rate_vs_sft.mean"} <= shared


def test_policies_and_reward_models_are_logged_without_anything_that_could_run_code(
    world: World, runs: dict[str, Run]
):
    client = store(world)
    models = client.search_logged_models([runs["sft"].info.experiment_id])

    kinds = sorted((model.name, model.status) for model in models)
    assert [str(name) for name, _ in kinds] == ["policy"] * 3 + ["reward_model"] * 2
    assert {str(status).rpartition(".")[2] for _, status in kinds} == {"READY"}
    kept = [path for path in (world.root / ".work/mlflow").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in kept)
    assert {path.suffix for path in kept} & {".pkl", ".pickle", ".bin", ".pt", ".pth"} == set()

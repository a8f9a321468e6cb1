"""A folder in which the training stages run in seconds: tiny data, tiny models, real stages.

`build` makes the inputs of all four (base, sft, reward, ppo) with the stages' own code; `run` runs
one in this process, as its command line would. Works under pytest and below benchmarks/torture.
"""

import contextlib
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from data.support_desk.corpus import sample_document
from data.support_desk.splits import sample_requests
from data.support_desk.templates import select_templates
from data.support_desk.writers import sample_writer, write_response
from preferences.records import pair_id
from rlhf.named_seeds import named_random
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import model_hash, write_json_lines
from tests.portable_bits import BITS

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("base", "sft", "reward@r1", "ppo@r1")
OUTPUTS = {
    "base": ("models/base", "results/base"),
    "sft": ("models/sft", "results/sft"),
    "reward@r1": ("models/rounds/r1/reward", "results/reward/r1"),
    "ppo@r1": ("models/rounds/r1/policy", "results/ppo/r1"),
}
TEN = select_templates(train=10)
STEPS = {"base": 8, "sft": 8, "reward@r1": 6, "ppo@r1": 3}
"""Steps that each stage makes here, and so the checkpoints it can be asked for."""


def build(root: Path, **embedded: int) -> None:
    """Write params and data, and bring every training stage's inputs and outputs about.

    Args:
        root: a folder, which may not exist yet.
        embedded: keys of `base.embedded` that are to differ from the tiny ones.
    """
    root.mkdir(parents=True, exist_ok=True)
    yaml = YAML()
    params = yaml.load(ROOT / "params.yaml")
    make_tiny(params, rounds=1)
    params["base"]["embedded"] |= embedded
    yaml.dump(params, root / "params.yaml")
    _write_prepared(root / "data/prepared")
    for stage in ("base", "sft"):
        assert run(root, stage) == 0, stage
    _write_preferences(root)
    for stage in ("reward@r1", "ppo@r1"):
        assert run(root, stage) == 0, stage


def run(root: Path, stage: str, **environment: str) -> int:
    """Run a stage in this process and return its exit code."""
    section, _, key = stage.partition("@")
    module = importlib.import_module(f"tasks.{section}")
    with _in(root), _set({"RLHF_SHIPPER": "driver", "RLHF_EXECUTION": "tiny", **environment}):
        return run_stage(
            section,
            module.run,
            inputs=module.INPUTS,
            per_round=bool(key),
            arguments=["--round", key] if key else [],
            errors=getattr(module, "ERRORS", {}),
        )


def digest(root: Path, stage: str) -> str:
    """One sha256 over every byte of a stage's outputs; empty where there are none."""
    return digest_of(root, OUTPUTS[stage])


def digest_of(root: Path, folders: Sequence[str]) -> str:
    """The same of any folders."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*"))]
    whole = hashlib.sha256()
    for path in paths:
        if path.is_file():
            whole.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return whole.hexdigest() if paths else ""


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From now on a stage in this process gets a SIGTERM as soon as it has logged the step."""
    log = Stage.log

    def log_and_signal(stage: Stage, now: int, metrics: dict[str, float]) -> None:
        log(stage, now, metrics)
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Stage, "log", log_and_signal)


def copy_repository(root: Path, *, without: tuple[str, ...]) -> None:
    """The files that git knows or would take, but for those below `without` and dvc.lock."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and name != "dvc.lock" and not name.startswith(without):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)


def copy_tiny_repository(root: Path, *, rounds: int) -> None:
    """The repository without tests and documents, its pipeline made tiny."""
    copy_repository(root, without=("tests/", "docs/"))
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    make_tiny(params, rounds=rounds)
    yaml.dump(params, root / "params.yaml")


def set_up(root: Path) -> None:
    """Give a checkout this interpreter's environment, as `make` finds it after its set-up."""
    venv = root / ".venv"
    venv.mkdir()
    for path in (Path(sys.prefix) / name for name in ("bin", "lib", "pyvenv.cfg")):
        if path.exists():
            (venv / path.name).symlink_to(path)
    (venv / "ready").touch()


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """For commands: this interpreter first, nothing of the user's settings, DVC's state below."""
    private = ("MLFLOW_", "PREFECT_", "RLHF_", "DVC_", "GIT_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(private)}
    # For `dvc exp run`, which commits.
    names = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(folder / "site-cache"),
        "OMP_NUM_THREADS": "1",
        "RLHF_SHIPPER": "driver",
        **dict.fromkeys(names, "t@t"),
        **changes,
    }


def forget(root: Path, stage: str) -> None:
    """Remove a stage's outputs and everything of its earlier runs, as before its first."""
    for path in (*OUTPUTS[stage], f".work/{stage}", ".work/spool"):
        shutil.rmtree(root / path, ignore_errors=True)


def checkpoint_paths(root: Path, stage: str) -> list[Path]:
    """The checkpoints of a stage, newest first."""
    return sorted((root / ".work" / stage).glob("*/step-*"), key=lambda p: p.name, reverse=True)


def make_tiny(params: dict[str, Any], *, rounds: int) -> None:
    """Give params the first `rounds` rounds, which take seconds and learn next to nothing."""
    params["run"] |= {"seed": 0, "threads": 1, "device": "cpu"}
    if BITS != "portable":
        params["run"]["bits"] = BITS
    params["prepare"] |= {
        "corpus_documents": 100, "demonstrations": 64, "train_prompts": 300,
        "heldout_prompts": 16, "test_prompts": 16,
    }  # fmt: skip
    params["base"]["embedded"] |= {
        "vocabulary_size": 400, "layers": 1, "hidden_size": 32, "heads": 2, "mlp_size": 64,
        "steps": STEPS["base"], "batch_size": 4, "sequence_length": 48,
    }  # fmt: skip
    params["sft"] |= {"batch_size": 8, "max_tokens": 1000}
    params["sample"] |= {"pairs": 48}
    params["validate"] |= {"heldout_fraction": 0.25}
    params["reward"] |= {"epochs": 2, "batch_size": 8, "max_tokens": 1000}
    params["ppo"] |= {
        "iterations": STEPS["ppo@r1"], "rollout_size": 8, "epochs": 1, "minibatches": 2,
        "max_prompt_tokens": 400,
    }  # fmt: skip
    params["evaluate"] |= {"prompts": 16}
    params["best_of_n"] |= {"prompts": 8, "samples": 4}
    for section in ("sample", "ppo", "evaluate"):
        params[section]["sampling"]["max_new_tokens"] = 8
    keys = list(params["rounds"])
    for key in keys[rounds:]:
        del params["rounds"][key]
    params["final"] = keys[rounds - 1]


def _write_prepared(folder: Path) -> None:
    requests = sample_requests("train", 64, named_random(0, "tiny"), templates=TEN)
    writing = named_random(0, "tiny", "writers")
    rows = [
        {
            "prompt_id": f"{number:016x}",
            "prompt": request.text,
            "response": write_response(request, sample_writer(writing), writing),
        }
        for number, request in enumerate(requests)
    ]
    prompts = [{key: row[key] for key in ("prompt_id", "prompt")} for row in rows]
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / "demonstrations.jsonl", rows)
    write_json_lines(folder / "prompts/train.jsonl", prompts)
    corpus = [
        {"text": sample_document(named_random(0, "tiny", i), templates=TEN)} for i in range(60)
    ]
    write_json_lines(folder / "corpus.jsonl", corpus)


def _write_preferences(root: Path) -> None:
    """Comparisons of SFT's pretended answers, and judgments of them by length."""
    requests = sample_requests("train", 24, named_random(0, "tiny", "pairs"), templates=TEN)
    writing = named_random(0, "tiny", "pairs", "writers")
    sft = model_hash(root / "models/sft")
    comparisons, preferences = [], []
    for number, request in enumerate(requests):
        long, short = (write_response(request, sample_writer(writing), writing) for _ in range(2))
        common = {"prompt_id": f"{number:016x}", "prompt": request.text, "round": "r1"}
        identity = {"pair_id": pair_id(request.text, long, short)}
        comparisons.append(
            identity | common
            | {"response_a": long, "response_b": short, "policy_a": sft, "policy_b": sft}
        )  # fmt: skip
        preferences.append(
            identity | common
            | {
                "chosen": long, "rejected": short + " ", "margin": 0.0, "weight": 1.0,
                "source": "tiny", "split": "train",
            }
        )  # fmt: skip
    folder = root / "data/rounds/r1"
    (folder / "preferences").mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / "comparisons.jsonl", comparisons)
    write_json_lines(folder / "preferences/train.jsonl", preferences)
    heldout = [row | {"split": "heldout"} for row in preferences[:4]]
    write_json_lines(folder / "preferences/heldout.jsonl", heldout)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _set(environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def set_params(root: Path, section: str, values: Mapping[str, Any]) -> None:
    """Change keys of a section of a world's params.yaml."""
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params[section] |= values
    yaml.dump(params, root / "params.yaml")

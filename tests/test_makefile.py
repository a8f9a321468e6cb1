"""What the targets of make run, by their variables, and that these options exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_files import ROOT

WHO = '--who "$RLHF_WHO" --why "$RLHF_WHY"'


def recipe(*words: str) -> list[str]:
    """The commands in Python of a target, as the shell gets them, without those of the set-up."""
    done = subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        " ".join(line.split()) for line in done.stdout.splitlines() if line.startswith("python -m")
    ]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("repro", "tasks.repro"),
        ("repro VARIANT=no_kl", "tasks.repro --variant 'no_kl'"),
        ("repro PRESET=1b-gpu MODEL=mine/m", "tasks.repro --preset 1b-gpu --model 'mine/m'"),
        ("verify", "tasks.verify"),
        ("verify STAGES=2", "tasks.verify --stages '2'"),
        ("verify-outputs", "tasks.verify --outputs"),
        ("doctor", "tasks.doctor"),
        ("doctor FIX=1", "tasks.doctor --fix"),
        ("prune", "tasks.prune"),
        ("prune RUNS=1", "tasks.prune --runs"),
        ("prune YES=1", "tasks.prune --yes"),
        ("promote", "tasks.promote"),
        ("promote ROUND=r3", "tasks.promote r3"),
        ("promote ROUND=r3 APPROVE=1 WHO=me WHY=x", f"tasks.promote r3 --approve {WHO}"),
        ("promote ROUND=r3 OVERRIDE=1 WHO=me WHY=x",
         f"tasks.promote r3 --approve --override {WHO}"),
        ("promote ROUND=r3 REJECT=1 WHO=me WHY=x", f"tasks.promote r3 --reject {WHO}"),
        ("rollback WHO=me WHY=x", f"tasks.promote --rollback {WHO}"),
        ("chat", "tasks.chat"),
        ("chat POLICY=models/sft", "tasks.chat --policy 'models/sft'"),
        ("chat SFT=1", "tasks.chat --sft"),
        ("sync", "tasks.sync"),
        ("annotate", "feedback serve"),
        ("flow", "flows.local"),
        ("ui", "flows.serve"),
    ],
)  # fmt: skip
def test_a_target_runs_what_its_variables_say_and_nothing_more(words: str, command: str) -> None:
    assert recipe(*words.split()) == [f"python -m {command}"]


def test_each_option_in_the_makefile_is_one_of_its_module() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    unknown = []
    for line in re.findall(r"python -m (?:tasks|benchmarks)\..*", text):
        module = line.split()[2].replace(".", "/")
        file = ROOT / f"{module}.py"
        file = file if file.is_file() else ROOT / module / "__main__.py"
        code = file.read_text(encoding="utf-8")
        options = re.findall(r"(?<=[ ,(])--[a-z-]+", line)
        unknown += [f"{module}: {one}" for one in options if f'"{one}"' not in code]
    assert unknown == []


def test_clean_leaves_workspaces_that_are_called_staging(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = [f".work/{kind}/staging" for kind in ("runs", "stages", "variants")]
    gone = [".work/sft/staging", ".work/ppo@r1/staging", "models/sft", "data/rounds/r1"]
    for folder in (*kept, *gone):
        (tmp_path / folder).mkdir(parents=True)

    subprocess.run(["make", "clean"], cwd=tmp_path, check=True)

    assert [folder for folder in (*kept, *gone) if (tmp_path / folder).exists()] == kept

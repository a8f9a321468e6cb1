"""Forgetting, driven for real: the whole tiny pipeline under DVC, and what it writes afterwards.

To the report: nothing of what was withdrawn is in any output, nor in DVC's cache or working files.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from data.support_desk.splits import sample_requests
from data.support_desk.writers import sample_writer, write_response
from rlhf.named_seeds import named_random
from tasks.forget import LEFT_TO_YOU
from tasks.own_data.files import follow
from tasks.params.loading import load_params
from tasks.workspace.dvc_process import DVC
from tests.stage_world import TEN, copy_tiny_repository, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

SOURCE = "mine/old.jsonl"
WORD = "Zibbledorf"
"""Stands in every text of that data set, and nowhere else."""
OUTPUTS = ("data/prepared", "data/rounds", "models", "results", "reports", "metrics")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One round, trained and committed."""
    root = tmp_path_factory.mktemp("forgetting") / "repository"
    copy_tiny_repository(root, rounds=1)
    write_source(root)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "Start"]):
        subprocess.run(["git", *command], cwd=root, check=True, env=environment(root.parent))
    (root / ".dvc/config.local").unlink(missing_ok=True)
    repro(root)
    subprocess.run(["git", "add", "dvc.lock"], cwd=root, check=True)
    subprocess.run(
        ["git", "commit", "-qm", "Run"], cwd=root, check=True, env=environment(root.parent)
    )
    return root


def write_source(root: Path) -> None:
    """A data set of pairs, its line in params.yaml, and what dvc.yaml has to list for it."""
    drawing = named_random(1, "old data")
    rows = [
        {"prompt": f"{request.text} {WORD}", "chosen": f"{answers[0]} {WORD}",
         "rejected": f"{answers[1]} {WORD}"}
        for request in sample_requests("train", 12, drawing, templates=TEN)
        for answers in [[write_response(request, sample_writer(drawing), drawing)
                         for _ in range(2)]]
        if answers[0] != answers[1]
    ]  # fmt: skip
    (root / SOURCE).parent.mkdir()
    (root / SOURCE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["prepare"]["sources"] = [{"path": SOURCE}]
    yaml.dump(params, root / "params.yaml")
    follow(root, load_params(root / "params.yaml"))


def call(root: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(
        command, cwd=root, env=environment(root.parent), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def run(root: Path, *module: str, code: int = 0) -> str:
    return call(root, sys.executable, "-m", *module, code=code)


def repro(root: Path) -> list[str]:
    """The stages that ran."""
    return re.findall(r"Running stage '([^']+)'", call(root, *DVC, "repro"))


def stages(shown: str, words: str) -> list[str]:
    """What `forget` said about stages."""
    (line,) = [line for line in shown.splitlines() if line.startswith(words)]
    return line.partition(": ")[2].split(", ")


def traces(root: Path, pattern: str) -> list[str]:
    """Files below the repository, git aside, that match."""
    search = re.compile(pattern.encode())
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts and "tests" not in path.parts
        if path.suffix not in (".py", ".pyc") and search.search(path.read_bytes())
    ]


def in_outputs(root: Path, pattern: str) -> list[str]:
    return [path for path in traces(root, pattern) if path.startswith(OUTPUTS)]


def test_an_annotator_goes_from_all_that_was_made_of_the_judgments(root: Path) -> None:
    before = (root / "models/rounds/r1/policy/model.safetensors").read_bytes()
    judged = (root / "data/rounds/r1/judgments.jsonl").read_text().count('"sim-1"')
    assert judged > 0

    shown = run(root, "tasks.forget", "--annotator", "sim-1", "--yes")

    assert f"  data/rounds/r1/judgments.jsonl: {judged}\n" in shown
    assert traces(root, '"sim-1"') == []
    named = stages(shown, "the next run makes anew")
    assert named[:4] == ["label@r1", "validate@r1", "reward@r1", "ppo@r1"]
    assert "report" in named
    looking = stages(shown, "the next run looks again")
    assert looking == ["prepare"], "own files might have votes of theirs"
    assert sorted(repro(root)) == sorted([*named, *looking])
    assert traces(root, '"sim-1"') == []
    assert in_outputs(root, r"\bsim-1\b") == []
    assert in_outputs(root, r"\bsim-2\b") != []
    assert "no model was formed by it" in run(root, "tasks.lineage", "--annotator", "sim-1")
    assert (root / "models/rounds/r1/policy/model.safetensors").read_bytes() != before
    assert repro(root) == []


def test_a_prompt_a_source_and_a_pattern_go_from_every_output(root: Path) -> None:
    """One run after three withdrawals; the last names all that the three have made stale."""
    train = (root / "data/prepared/prompts/train.jsonl").read_text().splitlines()
    pairs = (root / "data/rounds/r1/comparisons.jsonl").read_text().splitlines()
    prompt, other = json.loads(pairs[0]), json.loads(train[1])
    assert prompt["prompt_id"] != other["prompt_id"]
    pattern = re.escape(other["prompt"])
    gone = (prompt["prompt_id"], re.escape(json.dumps(prompt["prompt"])), pattern)
    assert all(in_outputs(root, one) for one in (*gone, WORD, SOURCE))
    assert "reports/results.json" in in_outputs(root, "gold")

    # A pattern first: it is looked for in texts, and those go with the first withdrawal.
    run(root, "tasks.forget", "--matching", pattern, "--yes")
    shown = run(root, "tasks.forget", "--matching", "whatever else is in a text")
    assert shown.startswith("Nothing here has it. Not here, and so not searched, are outputs that")
    assert "the next run makes anew: prepare, " in shown
    run(root, "tasks.forget", "--prompt", prompt["prompt_id"], "--yes")
    shown = run(root, "tasks.forget", "--source", SOURCE, "--yes", code=LEFT_TO_YOU)
    assert f"for you to edit (not JSON Lines, pinned, or all of it): {SOURCE}\n" in shown

    everywhere = {one: traces(root, one) for one in (*gone, WORD)}
    assert everywhere == {**{one: [] for one in gone}, WORD: [SOURCE]}
    # Its name is in params.yaml still, and the report's page lists what differs from the defaults.
    assert in_outputs(root, SOURCE) in ([], ["reports/index.html"])
    named = stages(shown, "the next run makes anew")
    assert named[0] == "prepare"
    assert sorted(repro(root)) == sorted(named)
    assert {one: traces(root, one) for one in (*gone, WORD)} == everywhere
    assert in_outputs(root, SOURCE) in ([], ["reports/index.html"])
    assert "no model was formed by it" in run(root, "tasks.lineage", "--source", SOURCE)
    assert repro(root) == []

"""Every command of README and tutorial, typed in the order of the document, in a tiny world.

    make documented-commands

The repository is copied, its parameters are made tiny, and each line is given to bash as it stands.
`make ui` and `make annotate` are asked for their pages and stopped by Ctrl-C; a scripted person
labels what the page has. Minutes on two quiet cores, therefore `slow`; that every command is known
here and that every make target exists is tested by tests/test_documented_steps.py in no time.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from ruamel.yaml import YAML

from tests.documents import BLANKS, Command, File, filled_in, is_run, is_server, read, steps
from tests.integration.test_people_rounds import label
from tests.integration.tiny_checkout import World, unrun_fixture  # noqa: F401
from tests.stage_world import environment, set_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE_SECONDS = 300
ENDS_WITH = {"make repro VARIANT=ten_pairs": 2}
"""Exit codes other than 0: this one waits for people (5, of which make makes 2)."""
PREFERENCES = "".join(
    f'{{"prompt": "Where is parcel {number}?", "chosen": "It is on its way.", '
    f'"rejected": "No idea about {number}, ask again."}}\n'
    for number in range(24)
)
"""Enough for the gate to hold some out."""
ANSWERS = "".join(
    f'{{"instruction": "Where is parcel {number}?", "output_1": "It is on its way.", '
    f'"output_2": "No idea about {number}, ask again.", "preference": {1 + number % 2}}}\n'
    for number in range(24)
)
"""As alpaca_eval has them."""
APPROVE = "python -m tasks.promote {} --approve --override --who me --why tried"
BEFORE = {
    "python -m tasks.compare A B": ["git add dvc.lock", "git commit --quiet -m run"],
    "make rollback WHO=NAME WHY=REASON": [APPROVE.format("r1"), APPROVE.format("r2")],
}
"""What has to have happened before: a run was committed, two policies were in production."""


@pytest.fixture(scope="module")
def world(unrun: World) -> World:
    """With an environment that make finds ready, a place to push to, and a file to check.

    PPO takes steps large enough that its KL penalty matters even in so small a world.
    """
    yaml = YAML()
    params = yaml.load(unrun.root / "params.yaml")
    params["ppo"]["optimiser"] |= {"lr": 0.02, "warmup_steps": 0}
    yaml.dump(params, unrun.root / "params.yaml")
    unrun.git("commit", "--quiet", "--all", "-m", "large steps")
    set_up(unrun.root)
    kept = environment(unrun.root.parent)
    shared = {k: v for k, v in kept.items() if not k.startswith(("MAKE", "MFLAGS", "RLHF_"))}
    mine = World(unrun.root, shared | {"HOME": str(unrun.root.parent)})
    remote = str(unrun.root.parent / "remote")
    mine.dvc("remote", "add", "--local", "--default", "keep", remote)
    (mine.root / "mine").mkdir()
    (mine.root / BLANKS["FILE"]).write_text(PREFERENCES, encoding="utf-8")
    (mine.root / BLANKS["ANSWERS"]).write_text(ANSWERS, encoding="utf-8")
    return mine


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_every_command_does_what_the_document_says(world: World, document: str):
    failed: list[str] = []
    for step in steps(read(document)):
        if isinstance(step, File):
            (world.root / step.path).write_text(step.text, encoding="utf-8")
        elif is_server(step):
            served(world, step)
        elif is_run(step):
            failed += typed(world, step)
    assert "\n".join(failed) == ""

    if document == "docs/tutorial.md":
        the_tutorial_tells_the_truth(world)


def typed(world: World, command: Command) -> Iterator[str]:
    """Run a line; what it wrote, if it did not end as it should."""
    for before in BEFORE.get(command.text, ()):
        world.run(*before.split())
    line, expected = filled_in(command), ENDS_WITH.get(command.text, 0)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=world.root,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != expected:
        yield f"{line}: {done.returncode}, expected {expected}:\n{done.stdout[-3000:]}"


def served(world: World, command: Command) -> None:
    """Start a server, ask for its pages, label what there is to label, press Ctrl-C."""
    wanted = ("Prefect", "MLflow") if "make ui" in command.text else ("The labelling page:",)
    if "make annotate" in command.text:
        wait_until_free(8765)
    with started(world, command) as process:
        for name in wanted:
            page = address(process, name)
            assert httpx.get(page, timeout=60, trust_env=False, follow_redirects=True).is_success
        if found := re.fullmatch(r"(http://[^/]+)/login#token=([\w-]+)", page):
            assert label(found[1], found[2], at_most=100) == 0


@contextmanager
def started(world: World, command: Command) -> Iterator["subprocess.Popen[str]"]:
    """A server and all its processes, which Ctrl-C ends."""
    process = subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=world.root,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def address(process: "subprocess.Popen[str]", name: str) -> str:
    """The address in the line that begins with this name."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.match(rf"{name} +(http://127\.0\.0\.1:\S+)", line):
            return found[1]
    raise AssertionError(f"no {name} in what the server wrote:\n{''.join(lines)}")


def wait_until_free(port: int) -> None:
    """Another test may have a labelling page open."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                assert time.monotonic() < deadline, f"port {port} is taken"
                time.sleep(0.5)
            else:
                return


def the_tutorial_tells_the_truth(world: World) -> None:
    """What it says that its commands do, where an exit code does not show it."""
    # Step 2: the run is committed. Step 3: the first reward model was reused, the policy was not.
    assert "Run the defaults" in world.git("log", "-1", "--format=%s")
    variants = world.root / ".work/variants"
    outcome = ".work/{}/outcome.json"
    assert not (variants / "mine" / outcome.format("reward@r1")).exists()

    # Step 4: ten judgments by one person; the run has come to the second round.
    ten = World(variants / "ten_pairs", world.environment)
    judgments = (ten.root / "data/rounds/r1/judgments.jsonl").read_text().splitlines()
    assert len(judgments) == 10
    assert all('"annotator_id": "me"' in one and '"human"' in one for one in judgments)
    assert (ten.root / "results/validate/r1/report.md").exists()
    waits = ten.json(outcome.format("label@r2"))
    assert waits["code"] == 5
    assert "round r2 waits for 10 of 10 judgments" in waits["message"]
    assert ten.json(outcome.format("ppo@r1"))["status"] == "done"

    # Step 5: the two policies differ.
    mine = World(variants / "mine", world.environment)
    assert "metrics/final.json" in mine.dvc("metrics", "diff")
    assert "ppo.kl_coef" in mine.dvc("params", "diff")

"""`python -m experiments.real_text TASK --data DATA --model FOLDER --run FOLDER`.

Question: do the stages that were built on a generated world learn anything from real text, on a
model of 135 million parameters that knows English? Two tasks (`worlds.py`): `polite`, instructions
with a polite and an impolite response, and `sentiment`, sentences of film reviews. One round from
preferences alone: SFT, reward model, PPO, evaluation, best of n. Win rates are of a judge that was
trained on other data and that no stage learns from.

DATA is a folder with the data sets and MODEL a causal model in Hugging Face format, both the
user's own. RUN is made a clone of this checkout's commit, in which the pipeline runs with the
preset `smollm2-135m`; the same command continues what was interrupted. Writes
`docs/results/data/real_text/TASK.json` and the page `docs/results/real_text.md`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.real_text.judge import train_judge
from experiments.real_text.page import write_page, write_record
from experiments.real_text.worlds import FILES, WORLDS, World
from tasks.params.editing import edit_params
from tasks.params.loading import ParamsError, flatten, read_yaml
from tasks.params.presets import take_preset
from tasks.running.staging import write_json_lines
from tasks.workspace.git import GitError, git

REPOSITORY = Path(__file__).resolve().parents[2]
PRESET = "smollm2-135m"
OVERLAY = Path(__file__).with_name("params.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 2 bad input, else that of the pipeline."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.real_text", description=__doc__.partition("\n")[2]
    )
    parser.add_argument("task", choices=sorted(WORLDS))
    for name in ("data", "model", "run"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar=name.upper())
    given = parser.parse_args(arguments)
    run: Path = given.run.resolve()
    try:
        world = WORLDS[given.task](given.data, FILES)
        _prepare(run, given.task, world, given.model.resolve())
    except (OSError, ParamsError, GitError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"real_text: {error}\n")
        return 2
    if code := _python(run, "tasks.repro").returncode:
        return code
    arguments = (given.task, str(given.data.resolve()))
    found = _python(run, "experiments.real_text.measuring", *arguments, stdout=subprocess.PIPE)
    if found.returncode:
        return found.returncode
    write_record(REPOSITORY, given.task, found.stdout)
    write_page(REPOSITORY)
    return 0


def _prepare(run: Path, task: str, world: World, model: Path) -> None:
    """The clone, its data and its parameters; what an earlier call has made stays."""
    if not run.exists():
        git(REPOSITORY, "clone", "--quiet", str(REPOSITORY), str(run))
    mine = run / "mine"
    mine.mkdir(exist_ok=True)
    write_json_lines(mine / "prompts.jsonl", [{"prompt": prompt} for prompt in world.prompts])
    write_json_lines(mine / "demonstrations.jsonl", world.demonstrations)
    write_json_lines(mine / "pairs.jsonl", world.pairs)
    if not (mine / "judge").exists():
        train_judge(mine / "judge", world.judge_pairs, model)
    take_preset(run, PRESET, str(model))
    overlays = read_yaml(OVERLAY)
    values = flatten(overlays["common"]) | flatten(overlays[task])
    edit_params(run / "params.yaml", values, rounds=1)


def _python(
    run: Path, module: str, *arguments: str, stdout: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """A command there: the clone's code, this environment's packages and commands."""
    commands = Path(sys.executable).parent
    own = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(run)}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=run,
        env={**os.environ, **own},
        stdout=stdout,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())

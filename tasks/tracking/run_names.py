"""The name of an execution of the pipeline in Prefect: `kl 0.10, 2 rounds, 6cb38ae`.

First how it differs from the defaults of the code, then the number of rounds, then the commit, with
`-dirty` (git's own word) if tracked files differed from it. In MLflow the date stands before it
(`tasks.tracking.runs`).
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.params.changed import changed_params
from tasks.params.loading import Params
from tasks.workspace.files import git_commit
from tasks.workspace.git import surroundings
from tasks.workspace.variants import variant_of

MOST = 3
"""Differences that a name shows at most; the parameters of the run show all of them."""

SHORT = {
    "base.model": "",
    "prepare.files": "",
    "prepare.sources": "",
    "ppo.kl_coef": "kl",
    "reward.retrain": "retrain",
    "run.seed": "seed",
    "label.annotators": "",
    "ppo.optimiser.lr": "lr",
    "ppo.iterations": "iterations",
    "sample.pairs": "pairs",
    "reward.optimiser.lr": "reward-lr",
    "sft.optimiser.lr": "sft-lr",
    "sft.epochs": "sft-epochs",
    "reward.epochs": "reward-epochs",
    "reward.ensemble": "ensemble",
    "ppo.rollout_size": "rollouts",
    "ppo.epochs": "ppo-epochs",
    "ppo.sampling.temperature": "temperature",
    "label.tau": "tau",
}
"""Parameter -> the label before its value, most informative first; all others come after them."""


def run_name(root: Path, params: Params) -> str:
    """The name of an execution of `params` in the workspace `root`, as its checkout is now."""
    variant = variant_of(root)
    own = [variant] if variant else []
    # A variant `seed1` says all that `seed 1` would.
    own += [one for one in differences(params) if one.replace(" ", "") not in own][
        : MOST - len(own)
    ]
    # A variant's checkout is a temporary snapshot; show the commit of the main checkout.
    checkout = root.resolve().parents[2] if variant else root
    rounds = "1 round" if len(params.rounds) == 1 else f"{len(params.rounds)} rounds"
    return ", ".join([*(own or ["default"]), rounds, *_commit(checkout)])


def differences(params: Params) -> list[str]:
    """How `params` differs from the defaults of the code, most informative first."""
    changed = {key: value for key, value, _ in changed_params(params)}
    order = [
        *(key for key in SHORT if key in changed),
        *(key for key in changed if key not in SHORT),
    ]
    return [*(_token(key, changed[key]) for key in order), *_unusual_rounds(params)]


def _token(key: str, value: Any) -> str:
    """`kl 0.10`, `no-retrain`, `SmolLM2-135M`; in general `ppo.value_model=shared`."""
    if key == "prepare.files":
        return "own-data"
    if key == "prepare.sources":
        return "+".join(_last_part(source["path"]) for source in value)
    if key == "base.model":
        return _last_part(value)
    plain = f"{key.partition('.')[0]}.{key.rpartition('.')[2]}"
    if isinstance(value, bool):
        label = SHORT.get(key, plain)
        return label if value else f"no-{label}"
    if isinstance(value, Mapping | list | tuple):
        return plain
    return f"{SHORT[key]} {_brief(value)}".lstrip() if key in SHORT else f"{plain}={_brief(value)}"


def _unusual_rounds(params: Params) -> Iterator[str]:
    """`r3-from-r1` where a round does not sample from the policy before it; `final-r2`.

    `r3-starts-at-sft` where PPO starts from another one than samples.
    """
    before = "models/sft"
    for key, entry in params.rounds.items():
        if entry.policy != before:
            yield f"{key}-from-{_brief_policy(entry.policy)}"
        if entry.start != entry.policy:
            yield f"{key}-starts-at-{_brief_policy(entry.start)}"
        before = f"models/rounds/{key}/policy"
    if params.rounds and params.final != list(params.rounds)[-1]:
        yield f"final-{params.final}"


def _brief_policy(path: str) -> str:
    """`sft`, `r1`."""
    return re.sub(r"^models/(rounds/)?|/policy$", "", path)


def _brief(value: object) -> str:
    """Numbers as people write them: 0.10, 1e-4, 512."""
    if not isinstance(value, float):
        return _last_part(str(value).lower() if value is None else str(value))
    if value and abs(value) < 0.01:
        digits, power = f"{value:.6e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    text = f"{value:g}"
    return f"{value:.2f}" if re.fullmatch(r"\d+\.\d", text) else text


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _commit(checkout: Path) -> list[str]:
    """`["6cb38ae"]`, `["6cb38ae-dirty"]`, nothing outside of git.

    Each run of the pipeline writes dvc.lock and metrics/, so changes there do not count as dirty.
    """
    if not (commit := git_commit(checkout)):
        return []
    command = ["git", "-C", str(checkout), "status", "--porcelain", "--untracked-files=no"]
    tracked = [*command, "--", ".", ":(exclude)dvc.lock", ":(exclude)metrics"]
    done = subprocess.run(tracked, capture_output=True, text=True, check=True, env=surroundings())
    return [commit[:7] + ("-dirty" if done.stdout.strip() else "")]

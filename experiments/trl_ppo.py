"""TRL's PPO beside ours on the same models, prompts and number of responses; writes docs/results.

    python -m experiments.trl_ppo RUN [RUN ...]      # folders in which `make repro` has finished

Question: does the last PPO that TRL had reach, from the same SFT model with the same reward model,
prompts and number of responses, what our first round reaches, and for how many processor seconds?
TRL gets our recipe as far as its options express it, and each policy rate of
`experiments/trl_ppo.yaml` on each run, ours the one of the run. Both sides are one command with one
thread each; its processor seconds include all imports. Ours is stage `ppo` of r1, run again in a
copy of the folder; it must give the policy that the run has.

Writes `docs/results/trl_ppo.json` and, from it, `docs/results/trl_ppo.md`; nothing in the runs.
"""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers

from benchmarks.trl_environment import WITH_PPO, make_environment
from experiments.measuring import (
    COMPUTE,
    REPOSITORY,
    FinishedRun,
    interval,
    measure,
    options_of,
    read_all,
    read_run,
    say,
    write_results,
)
from rlhf.compute import make_deterministic
from rlhf.intervals import mean_interval
from rlhf.models import load_policy
from rlhf.named_seeds import named_random
from tasks.params.loading import load_params, read_yaml
from tasks.running.models import encode_prompts, load_prompts

ROUND = "r1"
REWARD = Path(f"models/rounds/{ROUND}/reward")
POLICY = Path(f"models/rounds/{ROUND}/policy")


def order(run: FinishedRun, rate: float) -> dict[str, Any]:
    """What TRL is told: the run's recipe of a round, and the prompts that ours has taken."""
    params = load_params(run.root / "params.yaml").ppo
    rows = load_prompts(run.root / "data/prepared/prompts/train.jsonl")
    named_random(run.seed, "ppo", ROUND).shuffle(rows)
    _, prompts, _ = encode_prompts(rows, run.tokenizer, params.max_prompt_tokens)
    return {
        "seed": run.seed,
        "sft": str((run.root / "models/sft").resolve()),
        "reward": str((run.root / REWARD).resolve()),
        "prompts": prompts[: params.iterations * params.rollout_size],
        "rollout_size": params.rollout_size,
        "minibatches": params.minibatches,
        "epochs": params.epochs,
        "rate": rate,
        "value_rate": params.value_optimiser.lr,
        "beta2": params.optimiser.beta2,
        "warmup_rollouts": params.optimiser.warmup_steps // (params.minibatches * params.epochs),
        "options": {
            "response_length": params.sampling.max_new_tokens,
            "temperature": params.sampling.temperature,
            "missing_eos_penalty": params.missing_end_penalty,
            "kl_coef": params.kl_coef,
            "kl_estimator": params.kl_estimator,
            "cliprange": params.clip_range,
            "vf_coef": params.value_coef,
            "gamma": params.gamma,
            "lam": params.lam,
            "whiten_rewards": params.whiten_rewards,
        },
    }


def by_trl(run: FinishedRun, rate: float, python: Path) -> dict[str, Any]:
    """One training by TRL, measured."""
    say(f"seed {run.seed}, TRL, rate {rate:g}")
    with tempfile.TemporaryDirectory() as temporary:
        told = Path(temporary) / "order.json"
        told.write_text(json.dumps(order(run, rate)), encoding="utf-8")
        script = REPOSITORY / "benchmarks/trl_ppo_side.py"
        command = [str(python), str(script), str(told)]
        seconds = processor_seconds(command, REPOSITORY)
        policy = load_policy(told.parent / "policy", COMPUTE.device)
    found = measure(run, policy)
    return {"side": "TRL", "seed": run.seed, "rate": rate, "seconds": seconds, **found}


def by_us(run: FinishedRun) -> dict[str, Any]:
    """The run's own first round, trained again for its processor seconds.

    Raises:
        SystemExit: it gave another policy than the run has.
    """
    say(f"seed {run.seed}, ours")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "run"
        shutil.copytree(run.root, copy, ignore=shutil.ignore_patterns(".git", ".work", ".venv"))
        command = [sys.executable, "-m", "tasks.ppo", "--round", ROUND]
        seconds = processor_seconds(command, copy)
        manifest = POLICY / "manifest.json"
        if (copy / manifest).read_bytes() != (run.root / manifest).read_bytes():
            raise SystemExit(f"{run.root / POLICY} is not what its run would give here")
    rate = load_params(run.root / "params.yaml").ppo.optimiser.lr
    found = measure(run, load_policy(run.root / POLICY, COMPUTE.device))
    return {"side": "ours", "seed": run.seed, "rate": rate, "seconds": seconds, **found}


def processor_seconds(command: Sequence[str], folder: Path) -> float:
    """Of a command with one thread."""
    alone = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=alone, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """`docs/results/trl_ppo.md`."""
    lines = [
        f"# PPO by TRL {WITH_PPO} on the same models",
        "",
        "Written by `python -m experiments.trl_ppo RUN ...` from finished default runs; all",
        "numbers are in `trl_ppo.json`. Both sides start from the run's SFT model with its first",
        "reward model, take the same prompts, once each, and sample as many responses in rollouts",
        "of the same size. TRL has our recipe as far as its options express it, and several policy",
        "rates; ours has the one rate that was chosen for our side, on seeds 0 to 3, so the",
        "comparison is kinder to ours. TRL has no limit on the gradient's norm, clips values, and",
        "places the score behind the end ([parity](../trl-parity.md)). 512 held-out prompts, the",
        "same draws; intervals are of 95 % over the prompts, differences are paired by prompt.",
        "Seconds are of processors, of the whole command on one thread. Both sides are held to",
        "AVX2, as our portable bits are; TRL by itself would take what the processor has.",
        "",
        *_over_runs(found),
        "",
        "| seed | side | rate | gold | win rate vs SFT | KL | seconds | less ours, gold |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        cells = [
            str(row["seed"]),
            row["side"],
            f"{row['rate']:g}",
            interval(row["gold"], 2),
            interval(row["win_rate_vs_sft"], 3),
            interval(row["kl"], 2),
            f"{row['seconds']:.0f}",
            "" if row["side"] == "ours" else interval(row["less_ppo"], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _over_runs(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Means over the runs, and of TRL the difference to ours with the interval of its mean."""
    sides: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in found:
        sides.setdefault((row["side"], row["rate"]), []).append(row)
    lines = [
        "| side | rate | runs | mean gold | mean KL | mean seconds | less ours, mean gold |",
        "|---|---|---|---|---|---|---|",
    ]
    for (side, rate), rows in sides.items():
        gold, kl = (statistics.fmean(row[name]["mean"] for row in rows) for name in ("gold", "kl"))
        less = [row["less_ppo"]["mean"] for row in rows]
        compared = side != "ours" and len(rows) > 1
        cells = [
            side,
            f"{rate:g}",
            str(len(rows)),
            f"{gold:.2f}",
            f"{kl:.2f}",
            f"{statistics.fmean(row['seconds'] for row in rows):.0f}",
            interval(mean_interval(less).as_dict(), 2) if compared else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    options = options_of("trl_ppo", __doc__.partition("\n")[0], arguments)
    make_deterministic(1)
    transformers.utils.logging.disable_progress_bar()
    runs = read_all(lambda root: read_run(root, key=ROUND), options.runs)
    python = make_environment(REPOSITORY / ".work", WITH_PPO)
    rates = read_yaml(options.params)["rates"]
    found: list[dict[str, Any]] = []
    for run in runs:
        found += [by_us(run), *(by_trl(run, rate, python) for rate in rates)]
        # After each run: hours of work are behind it.
        write_results(options.out, "trl_ppo", found, page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

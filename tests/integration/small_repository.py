"""What the small git and DVC repositories of several tests have in common."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PARAMS = """\
run: {seed: 5}
prepare: {}
base: {}
sft: {}
sample: {}
label: {annotators: rubric}
validate: {}
reward: {max_tokens: 192}
ppo: {}
evaluate: {}
best_of_n: {}
report: {}
rounds:
  r1:
    {policy: models/sft, start: models/sft, reward_model: models/sft,
     preferences: data/prepared/preferences}
final: r1
"""
"""Every section, and one round."""


def commit(folder: Path, environment: Mapping[str, str]) -> None:
    """Make the folder a git and DVC repository whose one commit has all its files."""
    for command in (
        ["git", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
        ["git", "add", "--all"],
        ["git", "-c", "user.name=x", "-c", "user.email=x", "commit", "--quiet", "-m", "one"],
    ):
        subprocess.run(command, cwd=folder, check=True, env=environment)

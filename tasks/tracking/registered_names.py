"""What MLflow's registered models are called, and where it is said what people are asked of them.

Importing this costs nothing, as MLflow does.
"""

from pathlib import Path

POLICY = "rlhf-policy"
REWARD_MODEL = "rlhf-reward-model"
VERDICTS = Path(".work") / "promotion"
"""Where the verdicts are that people have been shown (`tasks.promoting.asking`)."""
PATIENCE_SECONDS = 30 * 24 * 3600
"""A question without an answer for thirty days is taken back, and nothing is promoted."""


def registered_name(path: str) -> str:
    """The registered model that a model folder such as `models/rounds/r1/reward` belongs to."""
    return REWARD_MODEL if path.endswith("/reward") else POLICY


def round_of(path: str) -> str:
    """The round of a model folder, or `sft`."""
    parts = Path(path).parts
    return parts[2] if parts[1] == "rounds" else parts[1]

"""What MLflow's registered models are called; importing this costs nothing, as MLflow does."""

from pathlib import Path

POLICY = "rlhf-policy"
REWARD_MODEL = "rlhf-reward-model"


def registered_name(path: str) -> str:
    """The registered model that a model folder such as `models/rounds/r1/reward` belongs to."""
    return REWARD_MODEL if path.endswith("/reward") else POLICY


def round_of(path: str) -> str:
    """The round of a model folder, or `sft`."""
    parts = Path(path).parts
    return parts[2] if parts[1] == "rounds" else parts[1]

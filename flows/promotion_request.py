"""Orders the run that asks a person about a new policy, where the deployment for it is served."""

from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

DEPLOYMENT = "promote/promote"
"""The flow of `flows.promotion`, as `flows.deployment` serves it."""


def ask(root: Path, round_key: str) -> None:
    """Order a run that asks a person about the round's policy; once for each policy.

    Does nothing where the deployment is not served, as with `make flow` by itself.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            return
    # Imported here: it brings MLflow, which takes seconds that most runs can save.
    from tasks.tracking.promotion import PromotionError, policy_digest  # noqa: PLC0415

    try:
        digest = policy_digest(root, round_key)
    except PromotionError:
        return
    run_deployment(
        DEPLOYMENT,
        parameters={"round_key": round_key, "workspace": str(root), "policy": digest},
        timeout=0,
        as_subflow=False,
        # Asks only once per policy.
        idempotency_key=f"promote-{digest}",
    )

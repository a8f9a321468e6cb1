"""Runs that have gone silent have crashed: an automation of Prefect's server says so.

The process of a flow run sends a heartbeat every `HEARTBEAT_SECONDS`, from a thread of its own:
however long a stage takes, its run is heard. Where the process is killed together with whoever
could report it (the worker, the machine), the heartbeats end, and the server itself calls the run
`Crashed`. A run that has ended cannot become `Crashed` any more: the server refuses that.

A server that was away for minutes, or a laptop that slept, may find a run silent that lives. Its
next heartbeat takes the word back.
"""

import os
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events import AutomationCore, EventTrigger, Posture
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.settings import PREFECT_UI_URL
from prefect.types import SecretDict
from pydantic import SecretStr

from flows import automations, notices
from flows.environment import HEARTBEAT_SECONDS
from flows.states import STATE_NAMES

NAME = "rlhf: a silent run has crashed"
NEVER = "rlhf: a run that never started has crashed"
ALIVE = "rlhf: who sends heartbeats is alive"
TOLD = "rlhf: tell of a silent run"
BLOCK = "rlhf-notify-url"
"""Where Prefect keeps the address of the webhook, encrypted."""
MESSAGE = (
    "No heartbeat for {seconds} s: its process, its worker or its machine is gone. Finished stages "
    "and checkpoints are kept; run it again."
)
SILENT_SECONDS = 5 * HEARTBEAT_SECONDS
"""With the server's own looks, one in five seconds, it says so within 180 s of the last heartbeat;
and a server that was away for less than two minutes calls no run dead that lives."""
REMEMBERED = timedelta(days=1)
"""How long a heartbeat takes back that a run has crashed."""
STARTING_SECONDS = 300
"""From the moment that a worker takes a run up until its process has to have said that it runs: it
imports for ten seconds on an idle machine."""
FLOWS = ["rlhf", "rlhf-sweep", "rlhf-stage"]
"""Flows of other projects on the same server may have slower heartbeats. `promote` is left out: it
suspends itself after seconds, and sends no heartbeat while people think. `rlhf-stage` runs on
another machine, whose death nobody else would notice: its run would be waited for, for ever."""
STARTED_HERE = ["rlhf", "rlhf-sweep", "rlhf-on-feedback", "promote"]
"""A worker starts their processes at once; `rlhf-stage` may wait for a pod, or in Slurm's queue."""


ENDS = {
    *STATE_NAMES.values(), "Stale", "Busy", "NotPushed", "Ordered", "Incomplete",
    "Crashed", "Cancelled", "TimedOut", "Paused", "Suspended", "AwaitingRetry",
}  # fmt: skip
"""Names of the states after which no heartbeat is expected. A pod that is evicted has its run wait
for another one (`AwaitingRetry`), which may take longer to come than a run may be silent."""


def _of(flows: list[str]) -> dict[str, Any]:
    """Each run of these flows."""
    return {
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": flows},
        "for_each": {"prefect.resource.id"},
    }


def register(client: SyncPrefectClient) -> None:
    """Have the server look for silent runs, and tell of them where an address is named."""
    automations.register(client, crashed())
    automations.register(client, never_started())
    automations.register(client, taken_back())
    if address := os.environ.get(notices.ADDRESS):
        webhook = Webhook(url=SecretStr(address), headers=SecretDict(notices.JSON))
        block = webhook.save(BLOCK, overwrite=True)
        automations.register(client, told(UUID(str(block))))
    else:
        automations.remove(client, TOLD)


def crashed(seconds: int = SILENT_SECONDS) -> AutomationCore:
    """A run of ours that has not ended, and sends no heartbeat for so long, becomes Crashed."""
    # Nothing else counts: the start of a run follows its first heartbeat, and Cancelling is what a
    # run stays in whose worker dies.
    return _silence(
        NAME, f"Marks runs as crashed that sent no heartbeat for {seconds} s.", FLOWS,
        after="heartbeat", expect={"heartbeat", *ENDS}, seconds=seconds,
    )  # fmt: skip


def never_started(seconds: int = STARTING_SECONDS) -> AutomationCore:
    """A run of ours that a worker has taken up, and whose process says nothing, becomes Crashed."""
    return _silence(
        NEVER, f"Marks runs as crashed that were taken up {seconds} s ago and do not run.",
        STARTED_HERE, after="Pending", expect={"Running", "Cancelling", *ENDS}, seconds=seconds,
    )  # fmt: skip


def _silence(
    name: str, description: str, flows: list[str], *, after: str, expect: set[str], seconds: int
) -> AutomationCore:
    """Calls a run of these flows crashed if none of what is expected follows within the seconds.

    `after` and `expect` name states, or the heartbeat.
    """
    return AutomationCore(
        name=name,
        description=description,
        trigger=EventTrigger(
            after={f"prefect.flow-run.{after}"},
            expect={f"prefect.flow-run.{each}" for each in expect},
            **_of(flows),
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=MESSAGE.format(seconds=seconds),
                force=False,  # One that has ended stays as it is.
            )
        ],
    )


def taken_back() -> AutomationCore:
    """A run of ours that is called Crashed, and sends a heartbeat, is Running."""
    return AutomationCore(
        name=ALIVE,
        description="Marks crashed runs as running when they send a heartbeat again.",
        trigger=EventTrigger(
            after={"prefect.flow-run.Crashed"},
            expect={"prefect.flow-run.heartbeat"},
            **_of(FLOWS),
            posture=Posture.Reactive,
            threshold=1,
            within=REMEMBERED,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.RUNNING, name="Running", message="It is alive.", force=True
            )
        ],
    )


def told(block: UUID) -> AutomationCore:
    """The server itself tells of a run that was silent: nobody else may be there any more."""
    pages = f"{(PREFECT_UI_URL.value() or '').rstrip('/')}/runs/flow-run/"
    return AutomationCore(
        name=TOLD,
        description=f"Tells the address in {notices.ADDRESS} of runs that have gone silent.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match={
                "prefect.resource.id": "prefect.flow-run.*",
                "prefect.state-message": "No heartbeat for *",
            },
            match_related={"prefect.resource.role": "deployment", "prefect.resource.name": FLOWS},
            threshold=1,
        ),
        actions=[CallWebhook(block_document_id=block, payload=notices.body(pages))],
    )

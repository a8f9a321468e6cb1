"""How the ending of a stage shows in Prefect, and what a state says of it."""

import logging

from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun
from prefect.states import Completed, Failed

from flows.stages import Ending, How

STATE_NAMES: dict[How, str] = {
    "ran": "Completed",
    "unchanged": "Unchanged",
    "cached": "Cached",
    "waiting": "Waiting",
    "blocked": "Blocked",
    "stopped": "Stopped",
    "bad_input": "BadInput",
    "failed": "Failed",
    "killed": "Killed",
    "refused": "Refused",
}
"""How a stage ended -> the name of its task's state. The flow ends in the state of the stage that
did not go through; `Completed` by type up to `Waiting`, `Failed` below."""


def task_state(ending: Ending) -> State[None]:
    """The Prefect state that shows how a stage ended."""
    well = ending.how in ("ran", "unchanged", "cached", "waiting")
    return (Completed if well else Failed)(
        name=STATE_NAMES[ending.how], message=ending.message or None
    )


def ending_of(state: State[None]) -> Ending:
    """How a stage ended that a flow run of its own has run, by the run's last state."""
    message = state.message or ""
    if state.is_crashed():
        return Ending("killed", message or "its flow run has crashed")
    if state.is_cancelled():
        return Ending("refused", "its flow run was cancelled")
    names: dict[str | None, How] = {name: how for how, name in STATE_NAMES.items()}
    return Ending(names.get(state.name, "failed"), message)


def leave_out_what_the_state_says() -> None:
    """Keep Prefect from logging a traceback where a run has ended in a failed state of ours.

    Its engine raises such a state and calls it an unexpected exception.
    """
    logging.getLogger("prefect.flow_runs").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], FailedRun)

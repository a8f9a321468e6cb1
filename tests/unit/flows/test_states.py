"""What the log of a run says besides its last state."""

import logging

import pytest
from prefect.exceptions import FailedRun
from prefect.logging import get_logger

from flows.states import leave_out_what_the_state_says


def test_a_failed_state_of_ours_is_no_traceback_and_any_other_exception_is_one(
    monkeypatch: pytest.MonkeyPatch,
):
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    logger = get_logger("prefect.flow_runs")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "filters", [])
    for _ in range(2):
        leave_out_what_the_state_says()
    for error in (FailedRun("ppo.kl_coeff: unknown key"), RuntimeError("no")):
        try:
            raise error
        except Exception:
            # As Prefect 3.8.8's engine does.
            logger.exception("Engine execution exited with unexpected exception")
    assert [record.exc_info and str(record.exc_info[1]) for record in told] == ["no"]

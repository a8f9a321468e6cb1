"""How a run has ended, told once by a webhook: `RLHF_NOTIFY_URL` names who is to know.

We send it ourselves, from the process that sees the end: the run's own, the worker whose run was
killed or cancelled, or the next one that finds a run dead. Prefect's own webhook is used only for
what none of ours can see (`flows.silent`): where its server is under load it calls one twice, and
it takes every response for a good one.

The body is JSON: `text` for people, which Slack and its like show, and the same in parts.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jinja2
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.logging.loggers import flow_run_logger
from prefect.settings import PREFECT_UI_URL
from prefect.states import Crashed

from tasks.params.redaction import redact

ADDRESS = "RLHF_NOTIFY_URL"
"""Environment variable; the address may hold a password or, as Slack's do, be one."""
JSON = {"Content-Type": "application/json"}
BODY = """{% set run = event.resource -%}
{% set id = run["prefect.resource.id"] | replace("prefect.flow-run.", "") -%}
{{ {
  "text": run["prefect.resource.name"] ~ ": " ~ run["prefect.state-name"] ~ ". "
          ~ run["prefect.state-message"],
  "run": run["prefect.resource.name"],
  "state": run["prefect.state-name"],
  "type": run["prefect.state-type"],
  "message": run["prefect.state-message"],
  "flow_run": id,
  "page": PAGES ~ id,
} | tojson }}"""
"""Template of the body over Prefect's event of a state, which Prefect's server can fill in, too."""
TOLD = Path(".work") / "told"
"""A file for each end that was told, or tried to, in the folder that the worker works in."""
ENDED = "The process was asked to end; the stage that ran keeps its checkpoint."
PATIENCE_SECONDS = 5.0
"""What we wait for the receiver in all."""


def tell_the_end(
    flow: Flow[..., Any],  # noqa: ARG001 - Prefect gives it by this name
    flow_run: FlowRun,
    state: State[Any],
) -> None:
    """For the hooks of a flow: tell how an ordered run has ended.

    Not of runs within a sweep, which ends itself, nor of one that has only ordered others.
    """
    if flow_run.parent_task_run_id is None and state.name != "Ordered":
        tell_once(flow_run, state)


def tell_of_own_cancel(state: State[Any]) -> None:
    """Tell of the flow run that calls this, if it ends since it has heard that it is cancelled.

    Prefect runs the hooks of a cancelled run only where a worker ends its process.
    """
    context = FlowRunContext.get() if state.is_cancelled() else None
    if context is not None and context.flow_run is not None and context.flow is not None:
        tell_the_end(context.flow, context.flow_run, state)


def tell_once(flow_run: FlowRun, state: State[Any]) -> None:
    """Tell how a run has ended, unless one of our processes has done so; its log has problems."""
    if not os.environ.get(ADDRESS):
        return
    if state.is_cancelling():
        state = State(type=StateType.CANCELLED, name="Cancelled", message=state.message)
    flow_run = _as_it_is(flow_run)
    if not _is_first(f"{flow_run.id}.{flow_run.run_count}.{state.type.value}"):
        return
    pages = f"{(PREFECT_UI_URL.value() or '').rstrip('/')}/runs/flow-run/"
    if problem := tell(flow_run.name, state, flow_run=str(flow_run.id), pages=pages):
        flow_run_logger(flow_run).warning("%s", problem)


def tell(run: str, state: State[Any], *, flow_run: str = "", pages: str = "") -> str:
    """Tell how a run has ended; what went wrong with that, empty if nothing did.

    Args:
        run: its name.
        state: its last one.
        flow_run: Prefect's id.
        pages: address of Prefect's pages of flow runs, to which the id is added.
    """
    address = os.environ.get(ADDRESS, "")
    if not address:
        return ""
    end = {
        "prefect.resource.id": f"prefect.flow-run.{flow_run}",
        "prefect.resource.name": run,
        "prefect.state-name": state.name or "",
        "prefect.state-type": state.type.value,
        "prefect.state-message": redact(state.message or ""),
    }
    template = jinja2.Environment(autoescape=False).from_string(body(pages))
    problem = _post(address, template.render(event={"resource": end}))
    if not problem:
        return ""
    return f"{ADDRESS} ({_host(address)}) was not told how the run ended: {problem}"


def _host(address: str) -> str:
    """The host of an address, whose path may be a secret."""
    try:
        return urlsplit(address).hostname or "no host"
    except ValueError:
        return "no address"


@contextmanager
def telling(run: str) -> Iterator[list[State[Any]]]:
    """Tell how a run ends that goes on in this context; what goes wrong with that goes to stderr.

    Yields a list for its last state. Without one, it is told what has interrupted it.
    """
    ended_in: list[State[Any]] = []
    interruption = ENDED
    try:
        yield ended_in
    except Exception as error:
        interruption = f"{type(error).__name__}: {error}"
        raise
    finally:
        state = ended_in[-1] if ended_in else Crashed(message=interruption)
        if problem := tell(run, state):
            sys.stderr.write(f"{problem}\n")


def body(pages: str) -> str:
    """The template of the body, with the address of Prefect's pages of flow runs in it."""
    return BODY.replace("PAGES", f'"{pages}"')


def _post(address: str, text: str) -> str:
    """Send it; what went wrong, empty if nothing did."""
    problems = [f"no response within {PATIENCE_SECONDS:g} s"]

    def post() -> None:
        try:
            answer = httpx.post(address, content=text, headers=JSON, timeout=PATIENCE_SECONDS)
            problems[:] = [] if answer.is_success else [f"it answered {answer.status_code}"]
        # httpx raises the last two for a proxy of the environment that it cannot use.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, ImportError) as error:
            problems[:] = [type(error).__name__]

    # A timeout of httpx is one of each part of an exchange; this one is of the whole.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return "".join(problems)


def _is_first(end: str) -> bool:
    """Whether nobody else tells this end."""
    with suppress(OSError):
        TOLD.mkdir(parents=True, exist_ok=True)
    try:
        (TOLD / end).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        # The disk is full, or read-only: told twice is better than never.
        return True
    return True


def _as_it_is(flow_run: FlowRun) -> FlowRun:
    """The run with its own name and the number of its starts; a worker has it from before both."""
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(flow_run.id)
    except (httpx.HTTPError, RuntimeError, ObjectNotFound):
        # Without a server, what we know of the run has to do.
        return flow_run

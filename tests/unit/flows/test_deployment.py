"""The deployments: what their forms ask, and the event that one of them listens to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedback.page.notify import EVENT, event_of
from flows import on_feedback, promotion, runner, runs, sweep
from flows.runner import LABELLED, deployments
from flows.serve import DEPLOYMENT
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, object]]:
    """Name of each deployment -> the fields of its form."""
    monkeypatch.setattr(runner, "_settings", lambda *_: {"parameters": {}})
    monkeypatch.setattr(runner, "_as_switched", lambda trigger: trigger)
    return {
        f"{each.flow_name}/{each.name}": dict(each._parameter_openapi_schema.properties)
        for each in deployments(tmp_path)
    }


def test_the_trigger_expects_what_the_page_sends():
    event = event_of("r1", "http://127.0.0.1:8765")
    assert LABELLED.expect == {EVENT} == {event["event"]}
    (pattern,) = LABELLED.match.root.values()
    assert event["resource"]["prefect.resource.id"].startswith(str(pattern).removesuffix("*"))


def test_each_deployment_is_named_after_its_flow_as_others_expect_it(schemas):
    assert set(schemas) == {
        DEPLOYMENT, "rlhf-on-feedback/rlhf-on-feedback", "rlhf-sweep/rlhf-sweep", "promote/promote"
    }  # fmt: skip
    assert runs.DEPLOYMENT == DEPLOYMENT
    assert (on_feedback.NAME, promotion.NAME) == ("rlhf-on-feedback", "promote")


def test_every_field_of_the_form_has_a_type_and_says_what_it_is(schemas):
    form = schemas[DEPLOYMENT]
    assert list(form) == [
        "name", "revision", "recipe", "overrides", "rounds", "until", "wait_for_people", "seeds",
    ]  # fmt: skip
    for name, field in form.items():
        assert len(field["description"]) > 40, name
        assert "default" in field, name
        assert "type" in field or "anyOf" in field, name
    assert form["wait_for_people"]["enum"] == ["as params.yaml says", "yes", "no"]
    assert form["seeds"]["items"] == {"type": "integer", "minimum": 0}
    assert form["rounds"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 100}


DEAF = """
import asyncio, signal
from flows import runner
runner.ENDING_SECONDS = 1.0
async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
async def main():
    signal.signal(signal.SIGTERM, runner.Worker(name="deaf").handle_sigterm)
    task = asyncio.create_task(deaf())
    # Once that task sleeps: in its own code, or before it, SystemExit would end it.
    asyncio.get_running_loop().call_later(0.2, lambda: print("ready", flush=True))
    await task
asyncio.run(main())
"""


@pytest.mark.long
def test_a_worker_ends_after_a_sigterm_though_a_task_of_its_loop_does_not():
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        worker.send_signal(signal.SIGTERM)
        try:
            assert worker.wait(PATIENCE_SECONDS) == 0
        finally:
            worker.kill()


@pytest.mark.parametrize(
    ("arguments", "address", "code", "words"),
    [
        (["--help"], None, 0, "until Ctrl-C"),
        (["--port", "4200"], "http://127.0.0.1:9/api", 2, "unrecognized arguments"),
        ([], None, 2, "PREFECT_API_URL: expected the address of a Prefect server, found none"),
    ],
    ids=["help", "unknown option", "no server"],
)
def test_without_a_server_nothing_starts(
    tmp_path: Path, arguments: list[str], address: str | None, code: int, words: str
) -> None:
    """Prefect would start one of its own, without a password, and write into the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-m", "flows.deployment", *arguments],
        env=kept | {"HOME": str(home)} | ({"PREFECT_API_URL": address} if address else {}),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert words in done.stdout + done.stderr
    assert list(home.iterdir()) == []


def test_a_line_that_enter_was_pressed_in_is_what_was_entered() -> None:
    """The boxes of Prefect's form have several lines, so that Enter does not send it."""
    entered = {"name": "kl\n", "revision": "main\n", "recipe": "no_kl\n", "until": "sft \n"}
    found = runs.run.validate_parameters(dict(entered))
    assert {field: found[field] for field in entered} == {
        "name": "kl", "revision": "main", "recipe": "no_kl", "until": "sft",
    }  # fmt: skip
    assert runs.entered_name(entered) == "kl"
    several = {"overrides": {"kl": {"ppo.kl_coef": 0.1}}, "seeds": [0]}
    of_sweep = sweep.sweep.validate_parameters({**several, "name": "s\n", "revision": "main\n"})
    assert (of_sweep["name"], of_sweep["revision"]) == ("s", "main")

"""The two ways to serve the flows, `make ui` and prefect.yaml, listen to the same event."""

from pathlib import Path
from typing import Any

from prefect.events import DeploymentEventTrigger
from ruamel.yaml import YAML

from feedback.page.notify import EVENT, event_of
from flows import promotion
from flows.deployment import LABELLED, NAME
from flows.rlhf import rlhf

ROOT = Path(__file__).resolve().parents[3]


def deployments() -> dict[str, dict[str, Any]]:
    content = YAML(typ="safe").load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    return {each["name"]: each for each in content["deployments"]}


def test_prefect_yaml_has_the_trigger_of_make_ui():
    (written,) = deployments()[NAME]["triggers"]
    trigger = DeploymentEventTrigger.model_validate(written)
    for field in ("name", "expect", "match", "threshold", "within"):
        assert getattr(trigger, field) == getattr(LABELLED, field), field


def test_the_trigger_expects_what_the_page_sends():
    event = event_of("r1", "http://127.0.0.1:8765")
    assert LABELLED.expect == {EVENT} == {event["event"]}
    (pattern,) = LABELLED.match.root.values()
    assert event["resource"]["prefect.resource.id"].startswith(str(pattern).removesuffix("*"))


def test_prefect_yaml_names_the_flows_that_make_ui_serves():
    entrypoints = {name: each["entrypoint"] for name, each in deployments().items()}
    assert entrypoints == {
        NAME: f"flows.rlhf.{rlhf.fn.__name__}",
        promotion.NAME: f"flows.promotion.{promotion.promote.fn.__name__}",
    }

"""What a person is shown before they decide, and how the decision shows."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import ValidationError, validate
from mlflow.entities.model_registry import ModelVersion, ModelVersionTag
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import Pause

from flows import promotion
from flows.promotion import (
    Answer,
    _require_measured,
    before_and_after,
    key_of,
    outcome,
    production_name,
    question,
    run_in,
)
from rlhf.intervals import Interval
from tasks.promoting.gate import Check, Compared, Limits, Verdict
from tasks.tracking.promotion import Candidate, Decision, PromotionError


def estimate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 9}


RESULTS = {
    "policies": [
        {
            "name": name,
            "gold": estimate(score),
            "win_rate_vs_sft": None,
            "win_rate_vs_previous": None,
            "kl": estimate(0.2),
        }
        for name, score in (("sft", 5.0), ("r1", 6.0), ("r2", 7.0))
    ],
    "reward_models": [],
}


@pytest.mark.parametrize(
    ("production", "shown"),
    [
        (None, [("before", "sft"), ("after", "r2")]),
        ("r1", [("start", "sft"), ("before", "r1"), ("after", "r2")]),
        # The same policy again, after a decision that is to be changed.
        ("r2", [("start", "sft"), ("after", "r2")]),
        # Its round has gone from params.yaml since.
        ("r0", [("start", "sft"), ("before", "r0"), ("after", "r2")]),
    ],
)
def test_the_new_policy_stands_after_the_one_in_production(production, shown):
    rows = before_and_after(RESULTS, "r2", production)
    assert [(row[""], row["policy"]) for row in rows] == shown


def production(digest: str) -> ModelVersion:
    tags = [ModelVersionTag("dvc.md5", digest), ModelVersionTag("rlhf.round", "r1")]
    return ModelVersion("rlhf-policy", "7", 0, tags=tags)


def test_figures_of_another_runs_round_of_the_same_key_are_not_shown_as_those_of_production(
    tmp_path,
):
    """Round r1 of this run has the policy 1a.dir, round r2 2a.dir."""
    stages = {
        f"evaluate@r{n}": {"deps": [{"path": f"models/rounds/r{n}/policy", "md5": f"{n}a.dir"}]}
        for n in (1, 2)
    }
    (tmp_path / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    first = Candidate(round_key="r1", digest="1a.dir", model=None)  # type: ignore[arg-type]
    second = replace(first, round_key="r2", digest="2a.dir")

    assert production_name(tmp_path, None, second) is None
    assert production_name(tmp_path, production("1a.dir"), second) == "r1"
    assert production_name(tmp_path, production("2a.dir"), second) == "r2"
    other = production_name(tmp_path, production("0b.dir"), second)
    assert other == "version 7 (round r1 of another run)"

    rows = before_and_after(RESULTS, "r2", other)
    lines = question("r2", rows, verdict(passed=True)).splitlines()
    assert f"|  | start: sft | before: {other} | after: r2 |" in lines
    assert "| gold score (of 10) | 5.00 [4.90, 5.10] | not here | 7.00 [6.90, 7.10] |" in lines

    # Both rounds have the same key.
    name = production_name(tmp_path, production("0b.dir"), first)
    rows = before_and_after(RESULTS, "r1", name)
    assert [(row[""], row["policy"]) for row in rows] == [
        ("start", "sft"), ("before", other), ("after", "r1"),
    ]  # fmt: skip


def test_a_policy_that_was_trained_anew_since_it_was_measured_cannot_be_decided_on(tmp_path):
    evaluated = {"deps": [{"path": "models/rounds/r1/policy", "md5": "1a.dir"}]}
    lock = {"schema": "2.0", "stages": {"evaluate@r1": evaluated}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    measured = Candidate(round_key="r1", digest="1a.dir", model=None)  # type: ignore[arg-type]
    _require_measured(tmp_path, measured)

    for other in (replace(measured, digest="2b.dir"), replace(measured, round_key="r2")):
        with pytest.raises(PromotionError, match="has not been evaluated yet"):
            _require_measured(tmp_path, other)


def test_a_round_without_metrics_cannot_be_decided_on():
    with pytest.raises(PromotionError, match="round r3 has not been evaluated"):
        before_and_after(RESULTS, "r3", None)


def verdict(*, passed: bool) -> Verdict:
    share = Interval(mean=0.6, low=0.5, high=0.7, n=9)
    check = Check(name="KL to SFT", passed=passed, found="12.00 nats", expected="at most 10")
    return Verdict(
        round_key="r2", digest="0a.dir", before="version 1 in production (round r1)",
        before_version="1", limits=Limits(), checks=(check,), test=None,
        heldout=Compared(
            split="heldout", judge="gold", wins=share, skipped=0, kl=share,
            length=9.0, length_before=9.0, diversity=0.2, diversity_before=0.2,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("key", ["r2", "round_2", "R2"])
def test_the_pages_of_a_round_have_keys_that_prefect_takes(monkeypatch, key):
    """Rounds may be called what Prefect refuses as the key of a page."""
    found = []

    def create(*_: object, key: str, **__: object) -> None:
        found.append(ArtifactCreate(key=key).key)

    monkeypatch.setattr(promotion, "create_table_artifact", create)
    monkeypatch.setattr(promotion, "create_markdown_artifact", create)
    promotion.publish(key, before_and_after(RESULTS, "r2", "r1"), verdict(passed=True))
    dashed = key.lower().replace("_", "-")
    assert found == [f"promotion-{dashed}", f"gate-{dashed}"]


def test_the_form_says_whether_the_gate_lets_the_policy_pass_and_why_not():
    rows = before_and_after(RESULTS, "r2", "r1")
    refused = question("r2", rows, verdict(passed=False))
    # What the form shows without scrolling.
    first = refused.partition("\n")[0]
    assert "It **does not pass the gate**: KL to SFT: 12.00 nats, expected at most 10." in first
    assert "| KL to SFT | 12.00 nats | at most 10 | **no** |" in refused
    assert "round r2 against version 1 in production (round r1)" in refused

    granted = question("r2", rows, verdict(passed=True))
    assert "It passes the gate." in granted
    assert "| KL to SFT | 12.00 nats | at most 10 | yes |" in granted


def test_an_answer_holds_for_what_the_gate_said_when_it_was_given():
    refused = verdict(passed=False)
    withdrawn = Check(name="withdrawn data", passed=False, found="since 3 May", expected="none")
    others = [
        replace(refused, checks=(*refused.checks, withdrawn)),
        replace(refused, digest="0b.dir"),
        replace(refused, before_version="2"),
    ]
    keys = {key_of(each) for each in (refused, verdict(passed=True), *others)}
    assert len(keys) == 2 + len(others)
    assert key_of(refused) == key_of(verdict(passed=False))


def test_the_question_says_whose_policy_it_is_about():
    rows = before_and_after(RESULTS, "r2", "r1")
    run = run_in(Path("/somewhere/.work/runs/kl-010"))
    asked = question("r2", rows, verdict(passed=True), run=run)
    assert "Shall the policy of round r2 of the run kl-010 replace" in asked
    assert run_in(Path("/somewhere/.work/variants/kl-010")) == run_in(Path("/runs")) == ""
    assert "Shall the policy of round r2 replace" in question("r2", rows, verdict(passed=True))


def test_the_question_has_one_line_for_each_figure():
    rows = before_and_after(RESULTS, "r2", "r1")
    lines = question("r2", rows, verdict(passed=True)).splitlines()
    assert "|  | start: sft | before: r1 | after: r2 |" in lines
    wanted = "| gold score (of 10) | 5.00 [4.90, 5.10] | 6.00 [5.90, 6.10] | 7.00 [6.90, 7.10] |"
    assert wanted in lines


@pytest.mark.parametrize(("choice", "name"), [("approve", "Promoted"), ("reject", "Rejected")])
def test_the_last_state_says_who_decided_and_why(choice, name):
    state = outcome("r2", Decision(choice=choice, who="Lea", why="shorter answers"), 3, "length: 9")
    assert (state.is_completed(), state.name) == (True, name)
    assert "Lea: shorter answers" in str(state.message)
    assert "version 3" in str(state.message)
    assert ("in spite of length: 9" in str(state.message)) == (choice == "approve")


@pytest.mark.parametrize("blank", ["", " ", "\n"])
@pytest.mark.parametrize("field", ["who", "why"])
def test_the_form_takes_no_decision_without_a_name_or_a_reason(field: str, blank: str) -> None:
    answer = {"decision": "approve", "who": "ana", "why": "better"}
    validate(answer, Answer.model_json_schema())
    with pytest.raises(ValidationError):
        validate(answer | {field: blank}, Answer.model_json_schema())


@pytest.mark.parametrize(("run_count", "said"), [(1, False), (2, True)])
def test_who_is_asked_again_is_told_that_the_answer_was_not_taken(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    run_count: int,
    said: bool,
) -> None:
    def suspend(**_: object) -> None:
        raise Pause

    monkeypatch.setattr(promotion, "suspend_flow_run", suspend)
    monkeypatch.setattr(promotion, "get_run_logger", logging.getLogger)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(run_count))
    with pytest.raises(Pause):
        promotion.answer_to("?", "key")
    assert ("has not been taken" in caplog.text) is said


def test_an_answer_whose_workspace_has_gone_says_how_it_comes_back(tmp_path: Path) -> None:
    workspace = tmp_path / ".work/runs/kl-010"
    with pytest.raises(PromotionError, match="no such folder; a run that is ordered as kl-010 "):
        promotion._refuse_if_changed(workspace, "r1", None)
    with pytest.raises(PromotionError, match=r"gone: no such folder$"):
        promotion._refuse_if_changed(tmp_path / "gone", "r1", None)


def test_a_folder_that_is_no_workspace_is_named_and_not_the_round(tmp_path: Path) -> None:
    with pytest.raises(PromotionError) as refused:
        promotion._refuse_if_changed(tmp_path, "r1", None)
    assert str(refused.value) == (
        "workspace: expected the checkout, or .work/runs/NAME of the run NAME; "
        f"{tmp_path} has no dvc.yaml"
    )

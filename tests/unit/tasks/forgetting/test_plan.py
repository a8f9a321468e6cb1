"""What a plan finds where, on this branch, on others and in earlier commits."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from preferences.records import pair_id
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS
from tasks.forgetting.plan import Plan, make_plan
from tasks.forgetting.wanted import Wanted
from tests.traced_world import START, World, digest, object_path
from tests.unit.tasks.forgetting.conftest import AFTER_LABEL, stages


def names(world: World, plan: Plan) -> set[str]:
    """The outputs whose cached files are to go."""
    known = {path: known for path, (known, _) in world.now.items()}
    del known["data/prepared/preferences"]  # a part of data/prepared
    found = set()
    for one in plan.files:
        md5 = one.path.parent.name + one.path.name
        for path, whole in known.items():
            if whole == md5:
                found.add(path)
            elif whole.endswith(".dir"):
                listing = json.loads(object_path(world.root, whole).read_text())
                found |= {f"{path}/{e['relpath']}" for e in listing if e["md5"] == md5}
    return found


def test_an_annotator_of_one_round_goes_with_the_preferences_that_came_of_it(
    world: World,
) -> None:
    plan = make_plan(world.root, Wanted("annotator", "ann"))

    assert names(world, plan) == {
        "data/rounds/r1/judgments.jsonl",
        "data/rounds/r1/preferences/train.jsonl",
        "data/rounds/r1/preferences/heldout.jsonl",
    }
    assert stages(world, plan) == {".": AFTER_LABEL}
    assert {model.path for model in plan.models} == {
        f"models/rounds/{key}/{name}" for key in ("r1", "r2") for name in ("reward", "policy")
    }
    assert {name for name, added in plan.tombstones.items() if added} == {WITHDRAWN_JUDGMENTS}


def test_a_verdict_that_names_an_annotator_takes_nothing_from_prepare(world: World) -> None:
    """A tombstone beside those of texts would have everything made anew."""
    verdict = world.root / "results/validate/r1/verdict.json"
    verdict.parent.mkdir(parents=True)
    verdict.write_text(json.dumps({"numbers": {"weak_annotators": {"names": ["ann"]}}}))

    plan = make_plan(world.root, Wanted("annotator", "ann"))

    assert verdict.resolve() in {one.path.resolve() for one in plan.files}
    assert {name for name, added in plan.tombstones.items() if added} == {WITHDRAWN_JUDGMENTS}


def test_models_of_other_branches_and_of_earlier_commits_are_named(world: World) -> None:
    here = world.commit_hash()
    replaced = world.now["models/rounds/r1/policy"][0]
    world.switch("other")
    world.round("r1", START, ["ann"], "elsewhere")
    world.commit()
    elsewhere = world.now["models/rounds/r1/policy"][0]
    world.switch(here)
    world.round("r1", START, ["bob"], "third")
    world.commit()

    plan = make_plan(world.root, Wanted("annotator", "ann"))

    assert {replaced, elsewhere} <= {model.digest for model in plan.models}
    assert world.now["models/rounds/r1/policy"][0] not in {m.digest for m in plan.models}


def test_a_prompt_goes_from_everything_after_prepare(world: World) -> None:
    plan = make_plan(world.root, Wanted("prompt", digest("two")))

    (again,) = stages(world, plan).values()
    assert again[:3] == ("prepare", "base", "sft")
    assert len(again) == 3 + 5 * 2
    assert {"data/prepared/prompts/train.jsonl", "data/rounds/r1/comparisons.jsonl",
            "data/rounds/r2/judgments.jsonl"} <= names(world, plan)  # fmt: skip
    assert "data/prepared/demonstrations.jsonl" not in names(world, plan)
    assert {name for name, added in plan.tombstones.items() if added} == {WITHDRAWN_TEXTS}
    assert {model.path for model in plan.models} == set(world.now) & {
        f"models/rounds/{key}/{name}" for key in ("r1", "r2") for name in ("reward", "policy")
    }


def test_a_pattern_finds_demonstrations_too_and_then_sft_contains_it(world: World) -> None:
    plan = make_plan(world.root, Wanted("matching", r"\bKim\b"))

    assert "data/prepared/demonstrations.jsonl" in names(world, plan)
    assert "models/sft" in {model.path for model in plan.models}
    held = load_of(plan)
    assert held("text", "three Kim")
    assert held("text", "re five Kim")
    assert not held("text", "one")


def load_of(plan: Plan) -> Callable[[str, str], bool]:
    from preferences.withdrawals import Withdrawals

    found = Withdrawals(frozenset(one for added in plan.tombstones.values() for one in added))
    return found.holds


@pytest.mark.parametrize(
    "voted",
    [
        {"prompt": "p", "response_a": "x", "response_b": "y", "votes": ["b"], "workers": ["cy"]},
        {"data": {"prompt": "p", "left": "y", "right": "x"},
         "annotations": [{"completed_by": {"email": "cy"}, "result": []}]},
    ],
    ids=["votes", "a task of Label Studio"],
)  # fmt: skip
def test_votes_among_the_sources_take_along_the_preferences_and_models_that_came_of_them(
    world: World, voted: dict[str, Any]
) -> None:
    """Neither the vote nor the preference says that they belong together."""
    preference = {
        "pair_id": pair_id("p", "y", "x"), "prompt_id": "q", "prompt": "p", "chosen": "y",
        "rejected": "x", "source": "votes.jsonl",
    }  # fmt: skip
    world.prepare(["one", "two"], ["one"], pairs=[preference])
    world.start()
    world.round("r1", START, ["bob"], "first")
    (world.root / "votes.jsonl").write_text(json.dumps(voted) + "\n")
    params = world.root / "params.yaml"
    named = "\nprepare:\n  sources: [{path: votes.jsonl}]\n"
    params.write_text(params.read_text().replace("\nprepare:\n", named))

    plan = make_plan(world.root, Wanted("annotator", "cy"))

    assert names(world, plan) == {"data/prepared/preferences/train.jsonl"}
    assert stages(world, plan)["."][0] == "prepare"
    assert {"models/rounds/r1/reward", "models/rounds/r1/policy"} <= {m.path for m in plan.models}

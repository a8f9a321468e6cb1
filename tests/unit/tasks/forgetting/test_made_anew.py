"""What the next run makes anew after a withdrawal is named for each run and variant."""

import json

import pytest

from preferences.withdrawals import WITHDRAWN_JUDGMENTS, tombstone
from tasks.forget import main
from tasks.forgetting.ledger import add
from tasks.forgetting.plan import make_plan
from tasks.forgetting.wanted import Wanted
from tasks.workspace.withdrawn import LOG
from tests.traced_world import START, World, after, digest
from tests.unit.tasks.forgetting.conftest import AFTER_LABEL, stages, workspace


def test_the_stages_are_named_for_each_run_and_variant_and_not_for_one_without_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with_both = world.commit_hash()
    del world.stages["sample@r2"], world.stages["label@r2"], world.stages["validate@r2"]
    del world.stages["reward@r2"], world.stages["ppo@r2"]
    world.round("r1", START, ["ann"], "alone")
    one_round = world.commit()
    world.round("r1", START, ["bob"], "without")
    without = world.commit()
    for name, commit in {
        "runs/both": with_both, "variants/one": one_round, "runs/without": without,
        "stages/elsewhere": with_both,
    }.items():  # fmt: skip
        workspace(world, name, commit)

    assert stages(world, make_plan(world.root, Wanted("annotator", "ann"))) == {
        ".work/runs/both": AFTER_LABEL, ".work/variants/one": AFTER_LABEL[:4]
    }  # fmt: skip
    assert main(["--annotator", "ann", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert f"the next run in .work/runs/both makes anew: {', '.join(AFTER_LABEL)}\n" in shown
    assert json.loads((world.root / LOG).read_text())["stages"] == {
        ".work/runs/both": list(AFTER_LABEL), ".work/variants/one": list(AFTER_LABEL[:4])
    }  # fmt: skip


def test_a_run_that_lacks_tombstones_of_before_looks_again(world: World) -> None:
    for name in ("label@r1", "label@r2"):
        dep = {"path": WITHDRAWN_JUDGMENTS, "md5": digest("none yet")}
        world.stages[name]["deps"].append(dep)
    world.round("r3", after("r2"), ["bob"], "third")
    folder = workspace(world, "runs/mine", world.commit())
    add(world.root, WITHDRAWN_JUDGMENTS, [tombstone("annotator", "cleo", "00")])
    add(world.root, WITHDRAWN_JUDGMENTS, [tombstone("annotator", "dan", "00")])

    plan = make_plan(world.root, Wanted("annotator", "dan"))

    assert not any(plan.tombstones.values())
    (again,) = plan.again
    assert (again.place, again.stages, again.looking) == (folder, (), ("label@r1", "label@r2"))


def test_what_an_earlier_withdrawal_made_stale_is_named_until_it_has_run(world: World) -> None:
    assert main(["--prompt", digest("two"), "--yes"]) == 0

    (again,) = stages(world, make_plan(world.root, Wanted("annotator", "ann"))).values()

    assert again[0] == "prepare"
    assert len(again) == 3 + 5 * 2

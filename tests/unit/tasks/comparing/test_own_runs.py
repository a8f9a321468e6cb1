"""Which entries of a dvc.lock belong to the params beside it."""

from typing import Any

from tasks.comparing.own_runs import own_runs
from tasks.tracing.records import Ran

PARAMS: dict[str, Any] = {"sample": {"pairs": 10}, "ppo": {"kl": {"coef": 0.1}, "lr": 1e-5}}


def ran(stage: str, deps: dict[str, str], outs: dict[str, str], **params: Any) -> Ran:
    return Ran(stage, deps, outs, params)


SAMPLE = ran("sample", {"code.py": "1"}, {"comparisons": "a"}, sample={"pairs": 10})
LABEL = ran("label", {"comparisons": "a"}, {"judgments": "b"})
PPO = ran("ppo", {"judgments": "b"}, {"policy": "c"}, **{"ppo.lr": 1e-5, "ppo.kl": {"coef": 0.1}})
BASE = ran("base", {}, {"base": "d"}, base=None)


def stages(*runs: Ran) -> tuple[list[str], list[str]]:
    kept, others = own_runs(runs, PARAMS)
    return [each.stage for each in kept], list(others)


def test_runs_with_these_params_that_build_on_each_other_are_kept():
    assert stages(BASE, SAMPLE, LABEL, PPO) == (["base", "sample", "label", "ppo"], [])


def test_a_run_with_another_value_and_all_that_builds_on_it_are_of_other_params():
    sample = ran("sample", {}, {"comparisons": "a"}, sample={"pairs": 500})
    assert stages(BASE, sample, LABEL, PPO) == (["base"], ["sample", "label", "ppo"])
    ppo = ran("ppo", {"judgments": "b"}, {"policy": "c"}, **{"ppo.kl": {"coef": 0.2}})
    assert stages(BASE, SAMPLE, LABEL, ppo) == (["base", "sample", "label"], ["ppo"])


def test_a_run_without_a_value_that_its_section_states_now_is_of_other_params():
    """Most values have their defaults: a variant adds what the main line does not name."""
    ppo = ran("ppo", {"judgments": "b"}, {"policy": "c"}, ppo={"lr": 1e-5})
    assert stages(BASE, SAMPLE, LABEL, ppo) == (["base", "sample", "label"], ["ppo"])
    ppo = ran("ppo", {"judgments": "b"}, {"policy": "c"}, ppo={"lr": 1e-5, "kl": {}})
    assert stages(ppo) == ([], ["ppo"])
    assert stages(ran("base", {}, {"base": "d"}, sampl=None, pp={}), PPO) == (["base", "ppo"], [])


def test_a_run_on_what_an_earlier_run_had_made_is_none_of_these():
    """A variant that waits for labels: its comparisons are new, the rest is the main line's."""
    label = ran("label", {"comparisons": "old"}, {"judgments": "b"})
    assert stages(SAMPLE, label, PPO) == (["sample"], ["label", "ppo"])


def test_a_run_on_a_folder_builds_on_all_that_made_parts_of_it():
    sft = ran("sft", {}, {"models/sft": "a"}, sample={"pairs": 500})
    best = ran("best_of_n", {"models": "b"}, {"results/best_of_n": "c"})
    other = ran("other", {"models.txt": "d"}, {"results/other": "e"})
    assert stages(sft, best, other) == (["other"], ["sft", "best_of_n"])

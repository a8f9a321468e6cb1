"""The parameters that differ from the defaults of the code."""

from dataclasses import fields, replace

from rlhf.params.ppo import PPOParams
from tasks.params.changed import SECTIONS, ChangedParam, changed_params
from tasks.params.loading import Params, RunParams
from tests.unit.tasks.tracking.test_run_names import DEFAULT


def test_all_sections_are_looked_at() -> None:
    assert {*SECTIONS, "rounds", "final"} == {field.name for field in fields(Params)}
    assert len(SECTIONS) == len(set(SECTIONS))


def test_defaults_have_none() -> None:
    assert changed_params(DEFAULT) == []


def test_each_has_its_dotted_key_its_value_and_the_default() -> None:
    ppo = PPOParams()
    changed = replace(
        DEFAULT,
        run=RunParams(seed=7),
        ppo=replace(ppo, kl_coef=0.5, sampling=replace(ppo.sampling, temperature=0.125)),
    )
    assert set(changed_params(changed)) == {
        ChangedParam("ppo.kl_coef", 0.5, ppo.kl_coef),
        ChangedParam("ppo.sampling.temperature", 0.125, ppo.sampling.temperature),
        ChangedParam("run.seed", 7, 0),
    }

"""A warm-up that is longer than the training is said before anything is trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from preferences.source_params import SourceParams
from tasks.own_data.checks import examine
from tasks.own_data.rows import own_split
from tasks.own_data.training_steps import step_notes
from tasks.params.loading import Params, load_params
from tasks.params.prepare import FilesParams
from tasks.params.presets import available_presets, take_preset
from tests.unit.tasks.own_data.test_checks import write_rows

ROOT = Path(__file__).resolve().parents[4]


def params_of(preset: str, folder: Path) -> Params:
    """The preset's, where nobody labels."""
    shutil.copy(ROOT / "params.yaml", folder)
    shutil.copytree(ROOT / "params", folder / "params")
    (folder / "mine").mkdir()
    take_preset(folder, preset, "mine")
    params = load_params(folder / "params.yaml")
    return replace(params, label=replace(params.label, annotators="none"))


def test_some_hundred_rows_are_all_warm_up_to_a_preset_for_thousands(tmp_path: Path) -> None:
    params = params_of("1b-gpu", tmp_path)
    sft, reward = step_notes(params, demonstrations=400, pairs=265)

    assert sft.startswith("sft.optimiser.warmup_steps: 30, but about 380 demonstrations make 12 ")
    assert reward.startswith(
        "reward.optimiser.warmup_steps: 20, but about 265 pairs of the first round make 9 steps, "
        "so reward.optimiser.lr (1e-05) is never reached"
    )


def test_a_rate_that_is_reached_late_is_said_too(tmp_path: Path) -> None:
    params = params_of("1b-gpu", tmp_path)
    (sft,) = step_notes(params, demonstrations=1500, pairs=2500)
    assert "make 45 steps, so sft.optimiser.lr (1e-05) is reached late" in sft


@pytest.mark.parametrize("name", available_presets(ROOT))
def test_every_preset_fits_the_data_that_it_asks_for(name: str, tmp_path: Path) -> None:
    params = params_of(name, tmp_path)
    assert not list(step_notes(params, params.prepare.demonstrations, params.sample.pairs))


def test_pairs_that_a_round_adds_and_a_model_of_others_need_no_note(tmp_path: Path) -> None:
    params = params_of("1b-gpu", tmp_path)
    labelled = replace(params, label=replace(params.label, annotators="people"))
    others = replace(params, reward=replace(params.reward, model="none"))
    for each in (labelled, others):
        assert not list(step_notes(each, demonstrations=10_000, pairs=0))
    assert not list(step_notes(params, demonstrations=10_000, pairs=0))


def test_the_preflight_counts_the_rows_that_train(tmp_path: Path) -> None:
    params = params_of("1b-gpu", tmp_path)
    files = FilesParams(prompts="prompts.jsonl", demonstrations="demonstrations.jsonl")
    asked = [f"w{n} w{n // 2}" for n in range(50)]
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": one} for one in asked])
    said = [{"prompt": one, "response": "w1"} for one in asked]
    write_rows(tmp_path / "demonstrations.jsonl", said)
    trained = [one for one in asked if own_split(one, files) == "train"]
    pairs = [{"prompt": one, "chosen": "w1", "rejected": "w2"} for one in trained]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    sources = (SourceParams(path="pairs.jsonl"),)
    prepare = replace(params.prepare, files=files, sources=sources, heldout_preferences=0.0)
    params = replace(params, prepare=prepare, sample=replace(params.sample, pairs=20))

    notes = "".join(examine(params, tmp_path).notes)

    assert "about 48 demonstrations make 2 steps" in notes
    assert f"about {len(trained)} pairs of the first round make 2 steps" in notes


def test_pairs_of_the_hub_are_not_taken_for_none(tmp_path: Path) -> None:
    params = params_of("1b-gpu", tmp_path)
    params = replace(
        params,
        label=replace(params.label, annotators="people"),
        sample=replace(params.sample, pairs=300),
        prepare=replace(
            params.prepare,
            files=None,
            sources=(SourceParams(path="org/many-pairs", revision="0123456789abcdef"),),
        ),
    )
    assert not examine(params, tmp_path).notes

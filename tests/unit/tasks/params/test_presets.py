"""Presets: what they write into params.yaml, what they leave, and that the shipped ones agree."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rlhf.model_folders import save_model
from rlhf.params.lora import LoraParams
from tasks import repro
from tasks.params.loading import ParamsError, load_params
from tasks.params.presets import available_presets, describe, main, take_preset
from tests import tiny

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = available_presets(ROOT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository's own params and presets, and two folders that could be models."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    return tmp_path


def edit(root: Path, old: str, new: str) -> None:
    path = root / "params.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def preset_of(root: Path, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(
        (root / f"params/presets/{name}.yaml").read_text(encoding="utf-8")
    )
    return loaded


def holds(values: Any, wanted: Any) -> bool:
    """Whether what a preset says is so in the params; they are dataclasses inside of each other."""
    if isinstance(wanted, Mapping) and values is not None:
        return all(holds(getattr(values, key), inner) for key, inner in wanted.items())
    return bool(values == wanted)


WIDTHS = {"smollm2-135m": 576, "8b-lora-gpu": 4096}
"""Of the hidden states of the largest model that a preset with a head on the trunk is for."""
SHIFT = 0.54
"""Sum of a head's inputs in the mean over tokens, for each of them: SmolLM2-135M-Instruct."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_step_of_a_value_head_moves_values_by_less_than_half_a_deviation(
    root: Path, name: str
) -> None:
    """Adam's first step moves each weight by the rate, so values by rate, width and input."""
    take_preset(root, name, "mine")
    ppo = load_params(root / "params.yaml").ppo
    assert (ppo.value_model == "shared") == (name in WIDTHS)
    if ppo.value_model == "shared":
        assert ppo.value_optimiser.lr * WIDTHS[name] * SHIFT < 0.5


@pytest.mark.parametrize("name", SHIPPED)
def test_every_preset_is_written_whole_and_params_yaml_is_sound(root: Path, name: str) -> None:
    take_preset(root, name, "mine")

    params = load_params(root / "params.yaml")
    assert params.base.model == "mine"
    assert holds(params, preset_of(root, name))


def test_rates_of_the_embedded_model_stay_in_none_of_them(root: Path) -> None:
    embedded = load_params(root / "params.yaml")
    for name in SHIPPED:
        values = preset_of(root, name)
        for section in ("sft", "reward", "ppo"):
            assert values[section]["optimiser"]["lr"] < getattr(embedded, section).optimiser.lr
        assert values["sft"]["optimiser"]["name"] == "adamw"


def test_all_presets_set_the_same_keys() -> None:
    """Else what one of them has set would stay when another is taken."""

    def keys(values: object) -> object:
        if not isinstance(values, Mapping):
            return None
        return {key: None if key == "lora" else keys(inner) for key, inner in values.items()}

    found = [keys(preset_of(ROOT, name)) for name in SHIPPED]
    assert len(found) == 3
    assert all(each == found[0] for each in found)


def test_comments_order_and_all_other_values_stay(root: Path) -> None:
    before = (root / "params.yaml").read_text(encoding="utf-8").splitlines()
    take_preset(root, "smollm2-135m", "mine")
    after = (root / "params.yaml").read_text(encoding="utf-8").splitlines()

    removed = [line for line in before if line not in after]
    assert [line for line in before if line.lstrip().startswith("#")] == [
        line for line in after if line.lstrip().startswith("#")
    ]
    assert "  optimiser: {name: muon, lr: 2e-3, muon_lr: 6e-3, warmup_steps: 30}" in removed
    assert "  optimiser: {name: adamw, lr: 2e-5, muon_lr: 6e-3, warmup_steps: 5}" in after
    assert "  revision: null" in after
    # Blank lines part the sections, and no new key slipped behind one.
    assert [line for line in after if line and not line.startswith((" ", "#"))] == [
        line for line in before if line and not line.startswith((" ", "#"))
    ]
    for number, line in enumerate(after):
        assert line or not after[number + 1].startswith(" ")


def test_the_second_time_nothing_changes(root: Path) -> None:
    assert take_preset(root, "smollm2-135m", "mine") != []
    text = (root / "params.yaml").read_bytes()
    changes = take_preset(root, "smollm2-135m", None)

    assert (changes, describe("smollm2-135m", changes)) == ([], "")
    assert (root / "params.yaml").read_bytes() == text


def test_what_the_user_has_written_stays_and_is_named(root: Path) -> None:
    edit(root, "iterations: 14", "iterations: 5")
    changes = take_preset(root, "smollm2-135m", "mine")

    params = load_params(root / "params.yaml")
    assert (params.ppo.iterations, params.ppo.rollout_size) == (5, 64)
    text = describe("smollm2-135m", changes)
    assert "ppo.iterations" in text
    assert "5, your own, stays (preset: 8)" in text
    assert "128 -> 64" in text


def test_another_preset_replaces_what_the_first_has_written(root: Path) -> None:
    take_preset(root, "8b-lora-gpu", "mine")
    edit(root, "rollout_size: 128", "rollout_size: 96")
    first = load_params(root / "params.yaml")
    changes = take_preset(root, "smollm2-135m", "other")

    params = load_params(root / "params.yaml")
    lora = LoraParams(rank=16, alpha=32)
    assert (first.sft.lora, first.reward.lora) == (lora, lora)
    assert (params.sft.lora, params.reward.lora, params.ppo.lora) == (None, None, lora)
    assert (params.run.precision, params.base.model) == ("float32", "other")
    assert [change.key for change in changes if change.own] == ["ppo.rollout_size"]


def test_a_model_of_the_hub_keeps_the_revision_that_was_named_for_it(root: Path) -> None:
    """Without one the model is refused; naming it and taking the preset again has to help."""
    with pytest.raises(ParamsError, match="no such model folder; of a model of the hub"):
        take_preset(root, "1b-gpu", "some/model")
    edit(root, "  revision: null", "  revision: abc")
    take_preset(root, "1b-gpu", "some/model")

    base = load_params(root / "params.yaml").base
    assert (base.model, base.revision) == ("some/model", "abc")


def test_a_model_in_a_folder_drops_the_revision_of_one_on_the_hub(root: Path) -> None:
    edit(root, "  model: null\n  revision: null", "  model: some/model\n  revision: abc")
    take_preset(root, "1b-gpu", "mine")

    base = load_params(root / "params.yaml").base
    assert (base.model, base.revision) == ("mine", None)


@pytest.mark.parametrize(
    ("name", "model", "problem"),
    [
        (
            "huge",
            "mine",
            "no preset 'huge': params/presets/huge.yaml is missing; there are: 1b-gpu",
        ),
        ("1b-gpu", None, "base.model is null; name its folder: make repro PRESET=1b-gpu MODEL="),
        ("1b-gpu", "none", "params.yaml: base.model: none: no such model folder"),
        ("1b-gpu", "", "--model (MODEL=) is empty, expected the folder of a model"),
    ],
)
def test_what_cannot_be_taken_is_one_line_and_changes_nothing(
    root: Path,
    name: str,
    model: str | None,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, files = (root / "params.yaml").read_bytes(), sorted(root.iterdir())
    with pytest.raises(ParamsError) as error:
        take_preset(root, name, model)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)

    monkeypatch.chdir(root)
    assert main([name, *(["--model", model] if model is not None else [])]) == 2
    assert problem in capsys.readouterr().err
    assert ((root / "params.yaml").read_bytes(), sorted(root.iterdir())) == (before, files)


def test_a_preset_of_ones_own_is_checked_before_it_is_written(root: Path) -> None:
    (root / "params/presets/mine.yaml").write_text("ppo: {minibatches: 7}\n")
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(ParamsError, match=r"params\.yaml: ppo\.minibatches: rollout_size 128"):
        take_preset(root, "mine", "mine")
    (root / "params/presets/mine.yaml").write_text("final: r1\n")
    with pytest.raises(ParamsError, match="final: no section that a preset may have"):
        take_preset(root, "mine", "mine")
    assert (root / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "mine"], "--model (MODEL=) goes with --preset (PRESET=)"),
        (["--preset", "1b-gpu", "--variant", "seed1"], "one at a time"),
    ],
)
def test_make_repro_refuses_a_model_alone_and_a_preset_with_a_variant(
    arguments: list[str],
    problem: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(SystemExit) as end:
        repro.main(arguments)
    assert end.value.code == 2
    assert problem in capsys.readouterr().err
    assert (root / "params.yaml").read_bytes() == before


def test_make_repro_takes_the_preset_before_it_reads_params_yaml(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends here because another folder holds no model, which is found after that."""
    monkeypatch.chdir(root)
    (root / "dvc.yaml").write_text("stages: {}\n")
    write_model(root / "mine")
    edit(root, "\nreward:\n", "\nreward:\n  model: other\n")
    assert repro.main(["--preset", "smollm2-135m", "--model", "mine"]) == 2

    out, err = capsys.readouterr()
    assert "Preset smollm2-135m (params/presets/smollm2-135m.yaml) in params.yaml:" in out
    assert "reward.model: " in err
    assert load_params(root / "params.yaml").ppo.lora == LoraParams(rank=16, alpha=32)


def write_model(folder: Path) -> None:
    tokenizer = tiny.tokenizer()
    save_model(tiny.llama(0, vocabulary=len(tokenizer)), folder)
    tokenizer.save_pretrained(folder)


def test_make_repro_looks_at_the_model_before_it_changes_params_yaml(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    (root / "dvc.yaml").write_text("stages: {}\n")
    before = (root / "params.yaml").read_bytes()

    assert repro.main(["--preset", "smollm2-135m", "--model", "mine"]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "mine: not a model folder in Hugging Face format" in err
    assert (root / "params.yaml").read_bytes() == before


def test_a_typo_in_a_preset_is_that_of_its_file(root: Path) -> None:
    (root / "params/presets/mine.yaml").write_text("ppo: {kl_coeff: 0.1}\n")
    with pytest.raises(ParamsError) as refused:
        take_preset(root, "mine", "mine")
    assert str(refused.value) == (
        f"{root / 'params/presets/mine.yaml'}: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?"
    )


def test_a_model_beside_the_checkout_is_named_by_its_full_path(root: Path) -> None:
    """Named relative to it, a workspace would have to name it otherwise, and do `base` again."""
    beside = root.parent / f"{root.name}-model"
    beside.mkdir()
    (root / "mine").mkdir(exist_ok=True)
    take_preset(root, "smollm2-135m", f"../{beside.name}")
    assert load_params(root / "params.yaml").base.model == str(beside)
    take_preset(root, "smollm2-135m", "mine")
    assert load_params(root / "params.yaml").base.model == "mine"
    (root / "linked").symlink_to(beside)
    take_preset(root, "smollm2-135m", "linked")
    assert load_params(root / "params.yaml").base.model == "linked"

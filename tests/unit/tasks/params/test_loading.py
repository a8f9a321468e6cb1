"""params.yaml is read whole, with the code's defaults; what is no such file is said in one line."""

import copy
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rlhf.params.ppo import PPOParams
from tasks.params.loading import ParamsError, flatten, load_params, read_yaml, section
from tasks.params.rules import NAMED_ALONE
from tests.unit.tasks.params.conftest import ROOT, ParamsFile, write


def test_the_shipped_file_is_valid_and_typed():
    shipped = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
    params = load_params(ROOT / "params.yaml")

    assert params.ppo.kl_coef == shipped["ppo"]["kl_coef"]
    assert params.ppo.optimiser.lr == shipped["ppo"]["optimiser"]["lr"]
    assert params.final in params.rounds
    assert params.rounds["r1"].policy == "models/sft"
    with pytest.raises(AttributeError):
        params.run.seed = 1  # type: ignore[misc]


def test_a_key_left_out_takes_its_default_but_a_section_must_be_there(params: ParamsFile):
    YAML().dump(params.drop("ppo.kl_coef").set("report", {}).values, params.path)
    assert load_params(params.path).ppo.kl_coef == PPOParams().kl_coef

    assert params.drop("evaluate").problems() == ["evaluate: missing"]


@pytest.mark.parametrize(
    ("key", "default"), [("label.annotators", "rubric"), ("reward.max_tokens", "192")]
)
def test_a_key_that_dvc_follows_by_itself_must_be_there(params: ParamsFile, key: str, default: str):
    """DVC, which knows none of our defaults, would end the run at the first stage with the key."""
    words = f"missing; DVC follows it by itself, so write it (default: {default})"
    assert params.drop(key).problems() == [f"{key}: {words}"]


def test_pairs_that_are_brought_along_may_be_of_any_source(params: ParamsFile):
    params.set("prepare.sources", [{"path": "mine/help.jsonl"}])
    YAML().dump(params.set("reward.source_weights", {"mine/help.jsonl": 0.5}).values, params.path)
    assert load_params(params.path).reward.source_weights == {"mine/help.jsonl": 0.5}


SECTIONS = (
    "run", "prepare", "base", "sft", "sample", "label", "validate", "reward", "ppo", "evaluate",
    "best_of_n", "report",
)  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_the_defaults_of_the_code_are_the_recipe_of_the_shipped_file(name: str):
    shipped = getattr(load_params(ROOT / "params.yaml"), name)

    assert flatten(asdict(shipped)) == flatten(asdict(type(shipped)()))


def lines_of(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted key of every entry that can be left out, sections within sections included."""
    found = []
    for key, value in values.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += lines_of(value, f"{prefix}{key}.")
    return found


@pytest.mark.long
def test_leaving_out_any_one_line_changes_nothing(params: ParamsFile):
    shipped = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
    expected = load_params(ROOT / "params.yaml")
    keys = [key for name in SECTIONS for key in lines_of(shipped[name], f"{name}.")]
    assert "ppo.optimiser.schedule" in keys
    for key in keys:
        if key in NAMED_ALONE:
            continue
        params.values = copy.deepcopy(shipped)
        YAML().dump(params.drop(key).values, params.path)
        assert load_params(params.path) == expected, key


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "0.00001", "1E-05"])
def test_numbers_with_an_exponent_are_numbers(tmp_path: Path, text: str):
    shipped = (ROOT / "params.yaml").read_text()
    changed = re.sub(r"kl_coef: \S+", f"kl_coef: {text}", shipped)
    assert load_params(write(tmp_path / "p.yaml", changed)).ppo.kl_coef == 0.00001


def test_a_missing_file_is_one_line(tmp_path: Path):
    path = tmp_path / "params.yaml"
    with pytest.raises(ParamsError) as error:
        load_params(path)
    assert str(error.value) == f"{path}: no such file"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"run: {seed: 1", "not valid YAML: while parsing a flow mapping"),
        (b"run:\n  seed: 1\n  seed: 2\n", "not valid YAML: while constructing a mapping"),
        (b"run: *nothing\n", "not valid YAML: found undefined alias"),
        (b"run: {seed: \xff}\n", "not UTF-8 (invalid start byte at byte 12)"),
        (b"- run\n- ppo\n", "expected a mapping of sections, got list"),
        (b"", "expected a mapping of sections, got NoneType"),
    ],
)
def test_what_is_no_params_file_says_why_in_one_line(tmp_path: Path, content: bytes, problem: str):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)

    with pytest.raises(ParamsError) as error:
        load_params(path)

    assert str(error.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(error.value)


def test_a_folder_in_place_of_the_file_is_the_users_mistake(tmp_path: Path):
    with pytest.raises(ParamsError, match="cannot be read"):
        load_params(tmp_path)


def test_no_value_in_the_file_can_run_code(tmp_path: Path):
    owned = tmp_path / "owned"
    path = write(tmp_path / "p.yaml", f"run: !!python/object/apply:os.mkdir [{owned}]\n")

    with pytest.raises(ParamsError):
        load_params(path)
    assert not owned.exists()


def test_a_section_comes_as_plain_values_and_flattens_to_dotted_keys():
    params = load_params(ROOT / "params.yaml")
    flat = flatten({"ppo": section(params, "ppo")})

    assert flat["ppo.kl_coef"] == params.ppo.kl_coef
    assert flat["ppo.optimiser.lr"] == params.ppo.optimiser.lr
    assert not any(isinstance(value, dict) for value in flat.values())


def test_dates_and_other_values_of_yaml_are_no_surprise(tmp_path: Path):
    path = write(tmp_path / "p.yaml", "seed: 2024-01-31\n")

    assert str(read_yaml(path)["seed"]) == "2024-01-31"

"""Which params name files, and how those get into dvc.yaml and out of it again."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.own_data.files import Named, follow, named_paths, own_files, require_followed, with_named
from tasks.params.loading import Params, ParamsError, load_params

ROOT = Path(__file__).resolve().parents[4]

FILES = {
    "prepare.files.prompts": "prepare",
    "prepare.files.demonstrations": "prepare",
    "prepare.files.corpus": "prepare",
    "prepare.files.preferences": "prepare",
    "prepare.sources.path": "prepare",
    "base.model": "base",
    "label.file": "label",
    "label.reward_model": "label",
    "reward.model": "reward",
}
"""Params that name a file or folder -> the stage that reads it."""

NO_FILES = {
    "prepare.sources.revision": "a hash",
    "prepare.sources.split": "a name within a data set of the hub",
    "prepare.sources.map": "names of columns",
    "base.revision": "a commit",
    "base.chat_template_args": "keys are names that a chat template reads",
    "ppo.rewards.function": "a file with a name in it, which four stages read: a test of its own",
    "ppo.rewards.sentiment_words": "a file that four stages read: the same test",
    "sft.lora.targets": "names of layers",
    "reward.lora.targets": "names of layers",
    "ppo.lora.targets": "names of layers",
    "label.store": "a live database: `label` asks it once and writes down what it said",
    "label.language_model.endpoint": "an address",
    "label.language_model.model": "a name at that address",
    "label.language_model.api_key_variable": "a variable of the environment",
    "validate.weights": "keys are kinds of annotators",
    "validate.human_labels": "keys are rounds",
    "validate.personal_patterns": "patterns, each with a name",
    "validate.limits": "keys are rules",
    "rounds.policy": "an output of a stage, in dvc.yaml as it is",
    "rounds.start": "an output of a stage, in dvc.yaml as it is",
    "rounds.reward_model": "an output of a stage, in dvc.yaml as it is",
    "rounds.preferences": "an output of a stage, in dvc.yaml as it is",
    "rounds": "names of the rounds",
    "final": "a round",
    "reward.source_weights": "keys are sources",
}
"""The other params that are text."""


def texts(kind: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all free texts in a type, whatever list, mapping or option they stand in."""
    if kind is str:
        yield prefix.removesuffix(".")
    elif dataclasses.is_dataclass(kind):
        for name, inner in typing.get_type_hints(kind).items():
            yield from texts(inner, f"{prefix}{name}.")
    elif typing.get_origin(kind) is not typing.Literal:
        for inner in typing.get_args(kind):
            yield from texts(inner, prefix)


def write_params(root: Path, **changes: dict[str, Any]) -> Params:
    values = YAML(typ="safe").load(ROOT / "params.yaml")
    for section, change in changes.items():
        values[section] |= change
    YAML().dump(values, root / "params.yaml")
    return load_params(root / "params.yaml")


def everything(root: Path, annotators: str) -> Params:
    """Params that name a file wherever they can."""
    (root / "model").mkdir()
    names = {name: f"mine/{name}.jsonl" for name in ("prompts", "demonstrations", "corpus")}
    return write_params(
        root,
        prepare={
            "files": {**names, "preferences": "mine/preferences.jsonl"},
            "sources": [{"path": "mine/a.jsonl"}, {"path": "hub/set", "revision": "0123456"}],
        },
        base={"model": "model"},
        reward={"model": "classifier"},
        label={"annotators": annotators, "file": "mine/judgments.jsonl", "reward_model": "scorer"},
    )


def test_every_text_in_the_params_is_known_to_be_a_file_or_none():
    assert set(texts(Params)) == set(FILES) | set(NO_FILES)


@pytest.mark.parametrize(
    "rewards",
    [
        {"function": "mine/check.py:score"},
        {"sentiment": 1.0, "sentiment_words": "mine/words.txt"},
    ],
)
def test_every_stage_that_scores_reads_the_files_of_its_rewards(
    tmp_path: Path, rewards: dict[str, Any]
):
    params = write_params(tmp_path, ppo={"rewards": rewards})
    found = {each.stage for each in named_paths(dataclasses.asdict(params)) if "mine" in each.path}
    assert found == {"ppo", "evaluate", "test", "best_of_n"}


def test_every_param_that_names_a_file_belongs_to_the_stage_that_reads_it(tmp_path: Path):
    found = {}
    for annotators in ("file", "reward_model"):
        (root := tmp_path / annotators).mkdir()
        for named in named_paths(dataclasses.asdict(everything(root, annotators))):
            key = ".".join(part for part in named.key.split(".") if not part.isdigit())
            found[key] = named.stage

    assert found == FILES


def test_what_is_not_there_and_ids_of_the_hub_are_no_dependencies(tmp_path: Path):
    params = everything(tmp_path, "file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/prompts.jsonl").touch()

    assert own_files(tmp_path, params, "prepare") == ["mine/prompts.jsonl"]
    assert own_files(tmp_path, params, "base") == ["model"]
    assert own_files(tmp_path, params, "label") == []


DVC_YAML = """\
# Mine.
stages:
  prepare:
    cmd: a
    deps:
      - code.py
      - by/hand.jsonl
    outs: [x]
  ppo:
    foreach: ${rounds}
    do:
      cmd: b
      deps:
        - code.py
"""


def test_lines_are_added_below_deps_replaced_and_taken_away_without_a_trace(tmp_path: Path):
    named = [
        Named("prepare", "prepare.files.prompts", 'mine/a "b" ${c}: #.jsonl'),
        Named("prepare", "prepare.sources.0.path", "by/hand.jsonl"),
        Named("prepare", "prepare.sources.1.path", 'mine/a "b" ${c}: #.jsonl'),
        Named("ppo", "ppo.rewards.sentiment_words", "/elsewhere/wörter.txt"),
    ]

    text = with_named(DVC_YAML, named, tmp_path)

    stages = YAML(typ="safe").load(text)["stages"]
    own = 'mine/a "b" \\${c}: #.jsonl'
    assert stages["prepare"]["deps"] == [own, "code.py", "by/hand.jsonl"]
    assert stages["ppo"]["do"]["deps"] == ["/elsewhere/wörter.txt", "code.py"]
    assert with_named(text, named, tmp_path) == text
    assert with_named(text, [], tmp_path) == DVC_YAML


def test_a_stage_without_a_list_of_deps_is_named(tmp_path: Path):
    text = "stages:\n  prepare: {cmd: a, deps: [b]}\n"
    with pytest.raises(ParamsError, match=r"stage prepare has no block list `deps:`.*mine/a"):
        with_named(text, [Named("prepare", "prepare.files.prompts", "mine/a")], tmp_path)


def test_a_stage_of_a_dvc_that_knew_nothing_of_the_files_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "dvc.yaml").write_text(DVC_YAML.replace("prepare", "base"))
    (tmp_path / "model").mkdir()
    params = write_params(tmp_path, base={"model": "model"})
    monkeypatch.setenv("DVC_STAGE", "base")

    with pytest.raises(ParamsError) as refused:
        require_followed(tmp_path, params)

    assert str(refused.value).startswith(
        'dvc.yaml now lists "model" (base.model). DVC had read it before: run the same command '
    )
    require_followed(tmp_path, params)
    assert not follow(tmp_path, params)


def test_a_new_name_is_told_with_the_one_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "dvc.yaml").write_text(DVC_YAML.replace("prepare", "base"))
    for name in ("model", "other"):
        (tmp_path / name).mkdir()
    assert follow(tmp_path, write_params(tmp_path, base={"model": "model"}))
    monkeypatch.setenv("DVC_STAGE", "base")

    with pytest.raises(ParamsError) as refused:
        require_followed(tmp_path, write_params(tmp_path, base={"model": "other"}))

    assert str(refused.value).startswith(
        'dvc.yaml now lists "other" (base.model); it no longer lists "model" (base.model). DVC had '
    )


def test_a_folder_without_dvc_yaml_has_nothing_to_follow(tmp_path: Path):
    (tmp_path / "model").mkdir()
    assert not follow(tmp_path, write_params(tmp_path, base={"model": "model"}))
    assert not (tmp_path / "dvc.yaml").exists()

"""Stage `prepare` as its command line runs it: which templates customers write with."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from data.support_desk.requests import parse_request
from preferences.withdrawals import tombstone
from tasks.prepare import run
from tasks.running.runner import run_stage
from tests.stage_world import ROOT, make_tiny

Prepare = Callable[..., Path]


def place(parent: Path, changes: dict[str, Any]) -> Path:
    """A new folder with parameters for this stage, small but for what is changed in its section."""
    root = parent / str(len(list(parent.iterdir())))
    root.mkdir()
    params = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
    make_tiny(params, rounds=1)
    params["prepare"] |= {"corpus_documents": 300, "demonstrations": 300, **changes}
    YAML().dump(params, root / "params.yaml")
    return root


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Runs the stage in a folder of its own; returns what it made.

    With changes to its section, and without annotators that are `gone`.
    """
    monkeypatch.setenv("RLHF_SHIPPER", "driver")

    def prepared(changes: dict[str, Any], gone: tuple[str, ...] = ()) -> Path:
        root = place(tmp_path, changes)
        (root / "data/withdrawn").mkdir(parents=True)
        lines = [tombstone("annotator", name, "5a" * 16).line() for name in gone]
        (root / "data/withdrawn/judgments.jsonl").write_text("".join(lines))
        monkeypatch.chdir(root)
        assert run_stage("prepare", run, arguments=[]) == 0
        return root / "data/prepared"

    return prepared


def training_places(path: Path) -> set[int]:
    """The places, within their intents, of the training templates of all requests in a file."""
    places = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = row.get("prompt") or row["text"]
        asked = re.sub(r"^Customer: | (Note|Answer|Draft): .*", "", text)
        if (request := parse_request(asked)) is not None:
            intent, split, place = request.template.split("-")
            assert (intent, split) == (request.intent, "train")
            places.add(int(place))
    return places


TRAINING_TEXTS = ("prompts/train.jsonl", "demonstrations.jsonl", "corpus.jsonl")


def test_training_texts_use_all_templates_unless_params_say_otherwise(prepare: Prepare):
    default, three, ten = (prepare(c) for c in ({}, *({"train_templates": n} for n in (3, 10))))

    for name in TRAINING_TEXTS:
        assert training_places(default / name) == set(range(24)), name
        assert training_places(three / name) == set(range(3)), name
        assert training_places(ten / name) == set(range(10)), name
    for name in ("prompts/heldout.jsonl", "prompts/test.jsonl"):
        assert (default / name).read_bytes() == (ten / name).read_bytes()
        assert (default / name).read_bytes() == (three / name).read_bytes()


def own_files(folder: Path, prompts: list[Any], **others: list[dict[str, Any]]) -> dict[str, str]:
    """What `prepare.files` names, written to a folder: prompts, and what else is needed."""
    written = {
        "prompts": [{"prompt": prompt} for prompt in prompts],
        "demonstrations": [{"prompt": "w1", "response": "w2"}],
        "corpus": [{"text": "w1"}],
        **others,
    }
    folder.mkdir()
    for name, rows in written.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return {name: str(folder / f"{name}.jsonl") for name in written}


def test_own_preferences_keep_their_own_columns_and_all_digits(prepare: Prepare, tmp_path: Path):
    usual = {
        "prompt_id": "p", "prompt": "w1", "chosen": "w1", "rejected": "w2", "margin": 0.0,
        "weight": 1.0, "source": "human", "round": "", "split": "train",
    }  # fmt: skip
    others: tuple[dict[str, Any], ...] = (
        {},
        {"label": 0.5},
        {"chosen_finished": False, "annotator_version": "v1"},
        {"prompt": [{"role": "user", "content": "w1"}]},
        {"margin": 1 / 3, "weight": 1e-11},
    )
    rows = [{"pair_id": f"{n:016x}", **usual, **other} for n, other in enumerate(others)]
    files = own_files(tmp_path / "own", [f"w{n}" for n in range(50)], preferences=rows)

    written = (prepare({"files": files}) / "preferences/train.jsonl").read_text(encoding="utf-8")

    assert [json.loads(line) for line in written.splitlines()] == rows


def test_votes_of_who_has_withdrawn_count_in_no_source(prepare: Prepare, tmp_path: Path):
    """Also in a copy of the file that `tasks.forget` has never seen."""
    pair = {"response_a": "a", "response_b": "b"}
    rows = [
        {**pair, "prompt": "both", "votes": ["a", "b", "b"], "workers": ["ana", "bo", "cy"]},
        {**pair, "prompt": "hers", "votes": ["a"], "workers": ["ana"]},
        {**pair, "prompt": "his", "votes": ["b"], "workers": ["bo"]},
        {**pair, "prompt": "even", "votes": ["a", "b"], "workers": ["ana", "bo"]},
    ]
    (tmp_path / "own").mkdir()
    votes = tmp_path / "own/votes.jsonl"
    votes.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def preferred(folder: Path) -> dict[str, tuple[str, float]]:
        sides = [folder / f"preferences/{split}.jsonl" for split in ("train", "heldout")]
        found = [json.loads(line) for side in sides for line in side.read_text().splitlines()]
        mine = [row for row in found if row["prompt"] in ("both", "hers", "his", "even")]
        return {row["prompt"]: (row["chosen"], row.get("label", 1.0)) for row in mine}

    sources = {"sources": [{"path": str(votes)}]}
    before = preferred(prepare(sources))
    assert before["hers"] == ("a", 1.0)
    assert before["even"][1] == 0.5

    after = preferred(prepare(sources, gone=("ana",)))

    assert after == {"both": ("b", 1.0), "his": ("b", 1.0), "even": ("b", 1.0)}


def test_a_prompt_that_stands_there_repeatedly_is_one_prompt(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    texts = [f"w{n}" for n in range(40)]
    asked: list[Any] = [*texts, *(f" W{n} " for n in range(40))]
    turns = [{"role": "user", "content": "w41"}, {"role": "assistant", "content": "w42"}]
    asked += [[{"role": "user", "content": "w7"}], turns, turns, [*turns, turns[0]]]
    files = own_files(tmp_path / "own", asked)

    prompts = prepare({"files": files}) / "prompts"

    written = [json.loads(line)["prompt"] for file in prompts.iterdir()
               for line in file.read_text(encoding="utf-8").splitlines()]  # fmt: skip
    assert sorted(written, key=str) == sorted([*texts, turns, [*turns, turns[0]]], key=str)
    said = f"42 of 84 prompts left out (50 %): {files['prompts']}: they repeat others"
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_your_own_data_are_refused_when_they_need_more_memory(tmp_path: Path):
    rows = [{"prompt_id": f"{n}", "prompt": f"{n}" + "x" * 3_900_000} for n in range(40)]
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("prompts", "demonstrations", "pairs")}
    for name, more in (
        ("prompts", {}),
        ("demonstrations", {"response": "a"}),
        ("pairs", {"chosen": "a", "rejected": "b"}),
    ):
        lines = (json.dumps({**row, **more}) + "\n" for row in rows)
        paths[name].write_text("".join(lines), encoding="utf-8")
    files = {name: str(paths[name]) for name in ("prompts", "demonstrations")}
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    files["corpus"] = str(tmp_path / "corpus.jsonl")
    for own in ({"sources": [{"path": str(paths["pairs"])}]}, {"files": files}):
        root = place(tmp_path, {**own, "max_memory": 0.1})
        # A process of its own: where this one frees what earlier tests took, it gains room.
        done = subprocess.run(
            [sys.executable, "-m", "tasks.prepare"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        needed = "your data need more than 0.1 GiB of memory (prepare.max_memory)"
        assert needed in done.stderr
        assert "Traceback" not in done.stderr
        assert not (root / "data/prepared").exists()

"""Your own prompts, demonstrations and base model through the first three stages."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from transformers import AutoTokenizer

from tasks.own_data.preflight import check_inputs
from tasks.params.loading import ParamsError, load_params
from tests.word_models import TEMPLATE, tokenizer, write_chat_model

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class Place:
    """A folder with params.yaml and one's own files."""

    def __init__(self, root: Path):
        self.root = root
        self.values = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
        self.values["run"]["threads"] = 1
        self.values["prepare"]["files"] = {
            "prompts": "own/prompts.jsonl",
            "demonstrations": "own/demonstrations.jsonl",
            "corpus": "own/corpus.jsonl",
        }
        self.values["sft"] |= {"batch_size": 8}
        self.values["sample"]["pairs"] = 20
        self.values["label"] = {"annotators": "people"}
        prompts = [
            {"prompt_id": f"p{n}", "prompt": [{"role": "user", "content": f"w{n} w{n // 2}"}]}
            for n in range(50)
        ]
        write_rows(root / "own/prompts.jsonl", prompts)
        write_rows(root / "own/corpus.jsonl", [{"text": "w1 w2 w3"}])
        answered = [{**row, "response": f"w{n} w1 w2"} for n, row in enumerate(prompts)]
        write_rows(root / "own/demonstrations.jsonl", answered)

    def save(self) -> Path:
        path = self.root / "params.yaml"
        YAML().dump(self.values, path)
        return path

    def run(self, stage: str) -> tuple[int, str]:
        """Exit code and stderr."""
        self.save()
        done = subprocess.run(
            [sys.executable, "-m", f"tasks.{stage}"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    def made(self) -> list[str]:
        """Everything but what was there and the working folder."""
        ours = ("own", "model", "params.yaml", ".work")
        return sorted(path.name for path in self.root.iterdir() if path.name not in ours)

    def preflight(self) -> list[str]:
        path = self.save()
        with pytest.raises(ParamsError) as error:
            check_inputs(load_params(path), self.root)
        return [line.removeprefix(f"{path}: ") for line in str(error.value).splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_own_prompts_demonstrations_and_chat_model_become_an_sft_model(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    del place.values["prepare"]["files"]["corpus"]

    for stage in ("prepare", "base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err

    prepared = place.root / "data/prepared"
    splits = [rows(prepared / f"prompts/{split}.jsonl") for split in ("train", "heldout", "test")]
    assert sorted(row["prompt_id"] for part in splits for row in part) == sorted(
        f"p{n}" for n in range(50)
    )
    assert all(splits)
    assert len(splits[0]) > len(splits[1]) + len(splits[2])
    assert splits[0][0]["prompt"][0]["role"] == "user"
    assert (prepared / "corpus.jsonl").read_bytes() == b""
    assert (prepared / "preferences/train.jsonl").read_bytes() == b""
    base = json.loads((place.root / "models/base/manifest.json").read_text())
    assert base["params"]["base"]["model"] == "model"
    # The template travels with the model, and SFT moved the weights.
    assert TEMPLATE in (place.root / "models/sft/chat_template.jinja").read_text()
    sft = json.loads((place.root / "models/sft/manifest.json").read_text())
    weights = "model.safetensors"
    assert base["files"][weights]["sha256"] != sft["files"][weights]["sha256"]
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == 50


def test_own_preferences_are_what_the_first_round_adds_to(place: Place):
    preferences = [
        {
            "pair_id": f"{n:016x}", "prompt_id": f"p{n}", "prompt": f"w{n}", "chosen": "w1",
            "rejected": "w2", "margin": 0.0, "weight": 1.0, "source": "human", "round": "",
            "split": "train" if n else "heldout",
        }
        for n in range(3)
    ]  # fmt: skip
    write_rows(place.root / "own/preferences.jsonl", preferences)
    place.values["prepare"]["files"]["preferences"] = "own/preferences.jsonl"

    assert place.run("prepare")[0] == 0

    folder = place.root / "data/prepared/preferences"
    assert rows(folder / "train.jsonl") == preferences[1:]
    assert rows(folder / "heldout.jsonl") == preferences[:1]


def test_a_missing_file_is_named_with_its_key(place: Place):
    place.values["prepare"]["files"]["preferences"] = "own/preferences.jsonl"
    problem = "prepare.files.preferences: own/preferences.jsonl: no such file"

    code, err = place.run("prepare")

    assert code == 2
    assert err == f"prepare: {problem}\n"
    assert place.made() == []
    assert place.preflight() == [problem]


def test_malformed_rows_are_all_named_with_file_and_line(place: Place):
    file = place.root / "own/demonstrations.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = '{"prompt_id": "p2", "prompt": "w2"}'
    lines[7] = "not json"
    file.write_text("\n".join(lines) + "\n")

    code, err = place.run("prepare")

    assert code == 2
    assert 'own/demonstrations.jsonl:3: field "response": missing' in err
    assert "own/demonstrations.jsonl:8: not JSON" in err
    assert "Traceback" not in err
    assert place.made() == []


def test_too_few_prompts_for_three_splits_are_refused(place: Place):
    write_rows(place.root / "own/prompts.jsonl", [{"prompt_id": "p", "prompt": "w1"}])

    code, err = place.run("prepare")

    assert code == 2
    assert "own/prompts.jsonl: no prompt falls into split" in err
    assert place.made() == []


def test_conversations_completions_and_rows_without_ids_become_an_sft_model(place: Place):
    """On a model as published: its end token is its padding, and several ids end a response."""
    write_chat_model(place.root / "model")
    chat = tokenizer(eos_token="</s>", pad_token="</s>")
    # Turns that `</s>` ends; of an argument, the template writes another word.
    chat.chat_template = TEMPLATE.replace("{% endfor %}", "</s> {% endfor %}").replace(
        "<assistant>{%", "<assistant>{% if not thinking is defined %} w59{% endif %}{%"
    )
    chat.save_pretrained(place.root / "model")
    stops = {"eos_token_id": [2, 3], "temperature": 0.7}
    (place.root / "model/generation_config.json").write_text(json.dumps(stops))
    place.values["base"] |= {"model": "model", "chat_template_args": {"thinking": False}}
    asked = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    write_rows(place.root / "own/prompts.jsonl", [{"prompt": f"w{n} w1"} for n in range(50)])
    write_rows(
        place.root / "own/demonstrations.jsonl",
        [
            *({"messages": [*asked, *asked], "source": f"{n}"} for n in range(8)),
            *({"prompt": asked[:1], "completion": asked[1:]} for _ in range(8)),
            *({"prompt": f"w{n}", "completion": "w4"} for n in range(8)),
        ],
    )
    check_inputs(load_params(place.save()), place.root)

    for stage in ("prepare", "base", "sft"):
        code, err = place.run(stage)
        assert code == 0, err

    folder = place.root / "models/sft"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 3]
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.7
    assert json.loads((folder / "tokenizer_config.json").read_text())["pad_token"] == "</s>"
    saved = AutoTokenizer.from_pretrained(folder)
    text = saved.apply_chat_template(asked[:1], tokenize=False, add_generation_prompt=True)
    assert text == "<user> w1 w2 </s> <assistant>"
    metrics = json.loads((place.root / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == 24


def test_all_missing_files_and_the_model_are_reported_at_once(place: Place):
    (place.root / "model").mkdir()
    place.values["base"]["model"] = "model"
    place.values["prepare"]["files"] |= {"prompts": "a.jsonl", "preferences": "b.jsonl"}
    place.values["ppo"]["rewards"] = {"sentiment": 1.0, "sentiment_words": "words.txt"}

    keys = [problem.partition(":")[0] for problem in place.preflight()]

    assert keys == [
        "prepare.files.prompts",
        "prepare.files.preferences",
        "base.model",
        "ppo.rewards.sentiment_words",
    ]


def test_sound_inputs_pass(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"

    check_inputs(load_params(place.save()), place.root)


def source_rows(word: str, count: int) -> list[dict[str, Any]]:
    """Pairs as others write them, without ids or sides."""
    return [
        {"prompt": f"{word} w{n}", "chosen": f"w{n} w1", "rejected": f"w{n} w2"}
        for n in range(count)
    ]


def test_a_mix_of_sources_is_read_weighed_and_split_by_prompt(place: Place):
    votes = {"prompt": "w9", "response_a": "w1", "response_b": "w2", "workers": ["x", "y"]}
    write_rows(place.root / "own/pairs.jsonl", source_rows("w50", 40))
    write_rows(
        place.root / "own/votes/a.jsonl",
        [{**votes, "votes": ["a", "a"]}, {**votes, "prompt": "w8", "votes": ["a", "b"]}],
    )
    # As the hub has it: a card, and the splits below data/.
    hub = place.root / "own/hub"
    write_rows(hub / "data/train-00000-of-00001.jsonl", source_rows("w51", 20))
    (hub / "README.md").write_text("A data set.\n")
    place.values["prepare"] |= {
        "heldout_preferences": 0.25,
        "sources": [
            {"path": "own/pairs.jsonl", "weight": 0.5},
            {"path": "own/votes"},
            {"path": "own/hub", "weight": 2.0},
        ],
    }

    code, err = place.run("prepare")

    assert code == 0, err
    folder = place.root / "data/prepared/preferences"
    sides = {split: rows(folder / f"{split}.jsonl") for split in ("train", "heldout")}
    found = [row for side in sides.values() for row in side]
    assert len(found) == 40 + 2 + 20
    assert [row["label"] for row in found if "label" in row] == [0.5], "the gate drops ties"
    assert {(row["source"], row["weight"]) for row in found} == {
        ("own/pairs.jsonl", 0.5),
        ("import", 1.0),
        ("own/hub", 2.0),
    }
    # A quarter of 62 prompts; four standard deviations are 13.6.
    assert 2 <= len(sides["heldout"]) <= 29
    assert all(row["split"] == split for split, side in sides.items() for row in side)
    counts = [(row["pairs"], row["ties"]) for row in rows(folder / "sources.jsonl")]
    assert counts == [(40, 0), (1, 1), (20, 0)]

    # More rows of a source, and every prompt stays on its side.
    write_rows(place.root / "own/pairs.jsonl", source_rows("w50", 80))
    assert place.run("prepare")[0] == 0
    later = {
        row["prompt"]: split
        for split in ("train", "heldout")
        for row in rows(folder / f"{split}.jsonl")
    }
    assert len(later) == 80 + 2 + 20
    assert all(later[row["prompt"]] == row["split"] for row in found)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"path": "own/none.jsonl"}, "own/none.jsonl: no such file or folder"),
        ({"path": "own/tracked"}, "own/tracked: not present; run `dvc pull own/tracked`"),
        ({"path": "own/x.jsonl", "revision": "0" * 7}, "own/x.jsonl: sha256 is "),
        ({"path": "own/bad.jsonl"}, 'own/bad.jsonl:2: field "chosen": missing'),
        ({"path": "own/x.jsonl", "wieght": 2}, "prepare.sources.0.wieght: unknown key"),
        ({"path": "own/x.jsonl", "weight": 0}, "weight is 0.0, expected above 0"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_and_nothing_is_written(
    place: Place, source: dict[str, Any], problem: str
):
    write_rows(place.root / "own/x.jsonl", source_rows("w1", 3))
    write_rows(
        place.root / "own/bad.jsonl", [source_rows("w1", 1)[0], {"prompt": "p", "rejected": "b"}]
    )
    (place.root / "own/tracked.dvc").write_text("outs:\n")
    place.values["prepare"]["sources"] = [source]

    code, err = place.run("prepare")

    assert code == 2
    assert problem in err
    assert "Traceback" not in err
    assert place.made() == []


def test_preferences_in_another_format_are_sent_to_prepare_sources(place: Place):
    write_rows(place.root / "own/pairs.jsonl", source_rows("w1", 3))
    place.values["prepare"]["files"]["preferences"] = "own/pairs.jsonl"

    code, err = place.run("prepare")

    assert code == 2
    assert "own/pairs.jsonl: found the format trl, expected preferences" in err
    assert "sources: [{path: own/pairs.jsonl}]" in err
    assert "missing" not in err
    assert place.made() == []


def test_demonstrations_and_pairs_that_are_left_out_are_said_on_the_screen(place: Place):
    write_chat_model(place.root / "model")
    place.values["base"]["model"] = "model"
    demonstrations = rows(place.root / "own/demonstrations.jsonl")
    for row in demonstrations[:30]:
        row["response"] = "w1 " * 40
    write_rows(place.root / "own/demonstrations.jsonl", demonstrations)
    place.values["sft"]["max_tokens"] = 30
    votes = {"prompt": "w9", "response_a": "w1", "response_b": "w2", "workers": ["x", "y"]}
    skipped = [{**votes, "prompt": f"w{n}", "votes": ["skip", "skip"]} for n in range(2)]
    write_rows(place.root / "own/votes.jsonl", [{**votes, "votes": ["a", "a"]}, *skipped])
    place.values["prepare"]["sources"] = [{"path": "own/votes.jsonl"}]

    said = {stage: place.run(stage) for stage in ("prepare", "base", "sft")}

    assert {code for code, _ in said.values()} == {0}, said
    assert (
        "WARNING: 2 of 3 pairs left out (67 %): own/votes.jsonl: 2 skipped, 0 without an opponent\n"
        in said["prepare"][1]
    )
    assert (
        "WARNING: 30 of 50 demonstrations left out (60 %): more than 30 tokens (sft.max_tokens)\n"
        in said["sft"][1]
    )

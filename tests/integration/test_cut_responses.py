"""A response that was cut at the length limit, from its sampling to the reward model's score."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from rlhf import reward
from rlhf.chat import decode_response
from rlhf.models import load_tokenizer
from rlhf.reward_models import load_reward_model
from rlhf.scoring import Encoder, score_rows
from tasks.generation import responses
from tasks.running.staging import model_hash, write_json_lines
from tests import stage_world
from tests.integration.own_place import rows
from tests.tiny import COMPUTE

pytestmark = pytest.mark.long

STAGES = ("sample@r1", "label@r1", "validate@r1", "reward@r1", "ppo@r1")
NEW_TOKENS = 40
"""Long enough for some responses of the tiny SFT model to end, short enough to cut most."""


def ids_of(root: Path, prompt: str, response: str, finished: bool) -> list[int]:
    """What the reward model has to read, by the tokenizer alone."""
    tokenizer = load_tokenizer(root / "models/sft")
    text = f"<|user|>{prompt}<|end|><|assistant|>"
    ids = [*tokenizer(text)["input_ids"], *tokenizer(response)["input_ids"]]
    return [*ids, tokenizer.eos_token_id] if finished else ids


def raw_scores(root: Path, rows: list[list[int]]) -> list[float]:
    folder = root / "models/rounds/r1/reward"
    model = load_reward_model(folder, torch.device("cpu"), torch.Generator())
    with torch.no_grad():
        return [
            float(model.raw_scores(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)))
            for row in rows
        ]


class World:
    """A round whose stages have run, with what sampling gave and reward training was given."""

    def __init__(self, root: Path):
        self.root = root
        self.sampled: list[list[int]] = []
        self.trained_on: list[reward.EncodedPair] = []

    def comparisons(self) -> list[dict[str, Any]]:
        return rows(self.root / "data/rounds/r1/comparisons.jsonl")

    def preferences(self, split: str) -> list[dict[str, Any]]:
        return rows(self.root / f"data/rounds/r1/preferences/{split}.jsonl")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("cut")
    stage_world.build(root)
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["sample"] |= {"pairs": 24, "against_sft": 0.5}
    params["sample"]["sampling"]["max_new_tokens"] = NEW_TOKENS
    # One token, so that text and token are one and the same.
    params["ppo"]["sampling"]["max_new_tokens"] = 1
    params["validate"] = {"heldout_fraction": 0.3}
    yaml.dump(params, root / "params.yaml")
    for split in ("train", "heldout"):
        folder = root / "data/prepared/preferences"
        folder.mkdir(parents=True, exist_ok=True)
        write_json_lines(folder / f"{split}.jsonl", [])
    for split in ("heldout", "test"):
        other = [{"prompt_id": f"e{split}", "prompt": f"Quite another {split} matter?"}]
        write_json_lines(root / f"data/prepared/prompts/{split}.jsonl", other)
    write_json_lines(root / "data/allowed.jsonl", [])
    made = World(root)
    train, draw = reward.train_members, responses.in_order

    def listened(*given: Any, **more: Any) -> list[list[int]]:
        drawn = draw(*given, **more)
        made.sampled += drawn
        return drawn

    def watched(training: Any, pairs: Any, *rest: Any, **more: Any) -> Any:
        made.trained_on += pairs
        return train(training, pairs, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reward, "train_members", watched)
        patch.setattr(responses, "in_order", listened)
        for stage in STAGES:
            assert stage_world.run(root, stage) == 0, stage
    return made


def test_sampling_says_which_responses_ended(world: World) -> None:
    tokenizer = load_tokenizer(world.root / "models/sft")
    ends: dict[str, set[bool]] = {}
    for ids in world.sampled:
        ended = ids[-1] == tokenizer.eos_token_id
        assert ended or len(ids) == NEW_TOKENS
        ends.setdefault(decode_response(tokenizer, ids), set()).add(ended)
    flags = [
        (row[f"response_{side}"], row[f"finished_{side}"])
        for row in world.comparisons()
        for side in ("a", "b")
    ]
    assert all(flag in ends[text] for text, flag in flags)
    assert {flag for _, flag in flags} == {True, False}


def test_the_flag_stays_with_its_response_through_labelling_and_the_gate(world: World) -> None:
    flags = {
        (row["prompt"], row[f"response_{side}"]): row[f"finished_{side}"]
        for row in world.comparisons()
        for side in ("a", "b")
    }
    preferences = [row for split in ("train", "heldout") for row in world.preferences(split)]
    assert preferences
    for row in preferences:
        for side in ("chosen", "rejected"):
            assert row[f"{side}_finished"] is flags[row["prompt"], row[side]]


def test_s41_training_reads_a_cut_response_without_the_end_token(world: World) -> None:
    expected = [
        [
            ids_of(world.root, row["prompt"], row[side], row[f"{side}_finished"])
            for side in ("chosen", "rejected")
        ]
        for row in world.preferences("train")
    ]
    assert [[pair.chosen, pair.rejected] for pair in world.trained_on] == expected


def test_s41_the_normaliser_reads_a_cut_response_without_the_end_token(world: World) -> None:
    sft = model_hash(world.root / "models/sft")
    rows = [
        ids_of(world.root, row["prompt"], row[f"response_{side}"], row[f"finished_{side}"])
        for row in world.comparisons()
        for side in ("a", "b")
        if row[f"policy_{side}"] == sft
    ]
    scores = raw_scores(world.root, rows)
    config = json.loads((world.root / "models/rounds/r1/reward/config.json").read_text())
    assert config["score_mean"] == pytest.approx(statistics.fmean(scores), rel=1e-4, abs=1e-5)
    assert config["score_std"] == pytest.approx(statistics.pstdev(scores), rel=1e-3)


def test_s48_held_out_pairs_are_read_without_the_end_token_of_cut_responses(world: World) -> None:
    decided = world.preferences("heldout")
    sides = [
        raw_scores(
            world.root,
            [
                ids_of(world.root, row["prompt"], row[side], row[f"{side}_finished"])
                for row in decided
            ],
        )
        for side in ("chosen", "rejected")
    ]
    gaps = torch.tensor(sides[0]) - torch.tensor(sides[1])
    nll = -torch.nn.functional.logsigmoid(gaps).mean()
    metrics = json.loads((world.root / "results/reward/r1/metrics.json").read_text())
    assert metrics["nll"] == pytest.approx(float(nll), rel=1e-4)


def test_s41_ppo_scores_a_response_where_training_scored_it(world: World) -> None:
    """The same response of one token, as the id that the policy emitted and from text and flag.

    Several tokens may have one text; the score tells which one it was.
    """
    tokenizer = load_tokenizer(world.root / "models/sft")
    folder = world.root / "models/rounds/r1/reward"
    judge = load_reward_model(folder, torch.device("cpu"), torch.Generator())
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    encoder, compared = Encoder(tokenizer), 0
    for row in rows(world.root / "results/ppo/r1/samples.jsonl"):
        if row["finished"]:
            continue
        start = ids_of(world.root, row["prompt"], "", finished=False)
        spellings = [[*start, n] for n, text in enumerate(texts) if text == row["response"]]
        scores = score_rows(judge, spellings, pad_id=encoder.pad_id, compute=COMPUTE)
        emitted = [
            ids
            for ids, score in zip(spellings, scores, strict=True)
            if row["score"] == pytest.approx(score, abs=2e-4)
        ]
        assert emitted
        compared += encoder.encode(row["prompt"], row["response"], finished=False) in emitted
    assert compared

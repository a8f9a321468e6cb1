"""Training stages with packed rows, recomputed layers, held-out rows, adapters and ensembles."""

import json
import statistics
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from preferences.splitting import split_of
from rlhf.ensembles import load_scorer
from rlhf.manifests import verify_files
from tasks import ppo
from tests import stage_world
from tests.integration.options_world import (  # noqa: F401
    LORA,
    assert_resumes,
    built_fixture,
    by_sft,
    history,
    same,
    weights,
    world_fixture,
)
from tests.stage_world import digest, forget, run, set_params


def test_packed_demonstrations_train_the_model_that_unpacked_ones_train(world: Path):
    """A row of several demonstrations, none of which sees another: only rounding differs."""
    plain = weights(world, "models/sft")
    set_params(world, "sft", {"packing": True})

    assert run(world, "sft") == 0
    packed = weights(world, "models/sft")
    assert not same(plain, packed)
    for name, weight in plain.items():
        torch.testing.assert_close(packed[name], weight, rtol=0, atol=2e-4)


def test_what_is_held_out_and_too_long_is_counted(world: Path, capfd: pytest.CaptureFixture[str]):
    """By the tokens of the template, counted here."""
    tokenizer = AutoTokenizer.from_pretrained(world / "models/base")
    lines = (world / "data/prepared/demonstrations.jsonl").read_text().splitlines()
    lengths = []
    for row in map(json.loads, lines):
        turns = [{"role": "user", "content": row["prompt"]},
                 {"role": "assistant", "content": row["response"]}]  # fmt: skip
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        side = split_of(row["prompt"], heldout_fraction=0.3, salt="demonstrations")
        lengths.append((side, len(tokenizer(text, add_special_tokens=False)["input_ids"])))
    most = sorted(length for _, length in lengths)[len(lengths) // 2]
    longer = [side for side, length in lengths if length > most]
    assert {"train", "heldout"} == set(longer)
    set_params(world, "sft", {"heldout_fraction": 0.3, "max_tokens": most})
    forget(world, "sft")

    assert run(world, "sft") == 0

    found = json.loads((world / "results/sft/metrics.json").read_text())
    assert found["too_long"] == longer.count("train")
    assert found["heldout_too_long"] == longer.count("heldout")
    of = [side for side, _ in lengths].count("heldout")
    expected = f"{longer.count('heldout')} of {of} demonstrations that are held out left out"
    assert expected in capfd.readouterr().err

    set_params(world, "sft", {"heldout_fraction": 0.999})
    assert run(world, "sft") == 2
    said = "sft: all 64 demonstrations are held out (sft.heldout_fraction)\n"
    assert capfd.readouterr().err.endswith(said)


def test_pairs_that_are_left_out_are_not_counted_as_trained_on(world: Path):
    path = world / "data/rounds/r1/preferences/train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::3]:
        row["weight"] = 0.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    forget(world, "reward@r1")

    assert run(world, "reward@r1") == 0

    found = json.loads((world / "results/reward/r1/metrics.json").read_text())
    assert found["pairs"] == len(rows) - len(rows[::3])


def test_the_newest_preferences_of_a_round_without_any_are_named(
    world: Path, capfd: pytest.CaptureFixture[str]
):
    path = world / "data/rounds/r1/preferences/train.jsonl"
    text = path.read_text()
    assert '"round": "r1"' in text
    path.write_text(text.replace('"round": "r1"', '"round": "r0"'))
    set_params(world, "reward", {"preferences": "newest"})
    forget(world, "reward@r1")

    assert run(world, "reward@r1") == 2
    assert "none of 0 preferences of this round (reward.preferences: newest)" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("stage", "curve"),
    [
        pytest.param("reward@r1", "loss", marks=pytest.mark.long, id="reward"),
        pytest.param("ppo@r1", "value/loss", id="ppo"),
    ],
)
def test_packed_rows_train_as_padded_ones_and_to_the_same_bytes_after_a_break(
    world: Path, stage: str, curve: str, monkeypatch: pytest.MonkeyPatch
):
    plain = history(world, stage)
    set_params(world, stage.partition("@")[0], {"packing": True})
    forget(world, stage)

    assert run(world, stage) == 0

    found = history(world, stage)
    assert found != plain
    for before, packed in zip(plain, found, strict=True):
        assert float(packed[curve]) == pytest.approx(float(before[curve]), rel=2e-3)
    assert_resumes(world, stage, monkeypatch)


@pytest.mark.long
def test_recomputed_layers_train_the_same_bytes(tmp_path: Path):
    """All of them, manifests included; each stage does run its first layer more often."""
    stage_world.build(tmp_path, layers=2)
    trained = ("sft", "reward@r1", "ppo@r1")
    before = {stage: digest(tmp_path, stage) for stage in trained}
    for stage in trained:
        plain = runs_of_attention(tmp_path, stage)
        set_params(tmp_path, stage.partition("@")[0], {"recompute_layers": True})
        assert runs_of_attention(tmp_path, stage) > plain
        assert digest(tmp_path, stage) == before[stage]


def runs_of_attention(root: Path, stage: str) -> int:
    """How often a stage runs any layer's attention when it starts from nothing."""
    runs = 0

    def count(module: torch.nn.Module, *_: object) -> None:
        nonlocal runs
        runs += type(module).__name__ == "LlamaAttention"

    forget(root, stage)
    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        assert run(root, stage) == 0
    finally:
        hook.remove()
    return runs


def test_held_out_demonstrations_are_measured_and_change_no_byte_of_what_is_trained(
    world: Path,
) -> None:
    """Training on the other side alone gives the same weights; the base's loss comes first."""
    path = world / "data/prepared/demonstrations.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if split_of(json.loads(line)["prompt"], heldout_fraction=0.3, salt="demonstrations")
        == "train"
    ]
    assert 0 < len(kept) < len(lines)
    set_params(world, "sft", {"heldout_fraction": 0.3})
    forget(world, "sft")
    assert run(world, "sft") == 0
    measured = (world / "models/sft/model.safetensors").read_bytes()
    metrics = json.loads((world / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == len(kept)
    assert metrics["heldout"]["demonstrations"] == len(lines) - len(kept)
    assert metrics["heldout"]["sft"] < metrics["heldout"]["base"]
    manifest = json.loads((world / "models/sft/manifest.json").read_text())
    assert manifest["params"]["sft"]["heldout_fraction"] == 0.3

    set_params(world, "sft", {"heldout_fraction": 0.0})
    path.write_text("".join(kept))
    forget(world, "sft")
    assert run(world, "sft") == 0
    assert (world / "models/sft/model.safetensors").read_bytes() == measured
    assert "heldout" not in json.loads((world / "results/sft/metrics.json").read_text())
    manifest = json.loads((world / "models/sft/manifest.json").read_text())
    assert "heldout_fraction" not in manifest["params"]["sft"]


def test_sft_with_an_adapter_publishes_base_plus_adapter_as_peft_reads_it(world: Path):
    from peft import PeftModel

    set_params(world, "sft", {"lora": LORA})
    assert run(world, "sft") == 0

    base = AutoModelForCausalLM.from_pretrained(world / "models/base")
    ids = torch.arange(5, 25).reshape(2, 10)
    before = base(ids).logits.detach()
    adapted = PeftModel.from_pretrained(base, str(world / "models/sft/adapter")).eval()
    merged = AutoModelForCausalLM.from_pretrained(world / "models/sft")
    torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=0, atol=1e-5)
    assert (merged(ids).logits - before).abs().max() > 1e-3


def own_score(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """The normalised score of a row without padding, by transformers alone."""
    config = model.config
    raw = model(ids).logits[0, 0].item()
    return (raw - config.score_mean) / config.score_std


def test_an_ensemble_with_adapters_is_published_whole_and_scores_as_its_members_say(world: Path):
    stage = "reward@r1"
    set_params(world, "reward", {"ensemble": 3, "ensemble_k": 0.5, "lora": LORA})
    forget(world, stage)
    assert run(world, stage) == 0

    folder = world / "models/rounds/r1/reward"
    places = [folder, folder / "member_2", folder / "member_3"]
    assert all((place / "adapter/adapter_model.safetensors").is_file() for place in places)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    verify_files(folder, listed)
    shared = "model-00001-of-00002.safetensors"
    assert {shared, f"member_2/{shared}", f"member_3/{shared}"} <= set(listed)
    assert len({(place / shared).read_bytes() for place in places}) == 1
    members = [AutoModelForSequenceClassification.from_pretrained(place).eval() for place in places]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("where is order 12 ?", return_tensors="pt")["input_ids"]
    scores = [own_score(member, ids) for member in members]
    assert len({round(score, 6) for score in scores}) == 3
    reference = [[own_score(member, row) for member in members] for row in by_sft(world, tokenizer)]
    for one in zip(*reference, strict=True):
        assert statistics.fmean(one) == pytest.approx(0, abs=1e-3)
        assert statistics.pstdev(one) == pytest.approx(1, abs=1e-3)
    together = [statistics.fmean(row) - 0.5 * statistics.pstdev(row) for row in reference]

    with torch.no_grad():
        joined = load_scorer(folder, torch.device("cpu"))(
            ids, torch.ones_like(ids, dtype=torch.bool)
        )
    wanted = statistics.fmean(scores) - 0.5 * statistics.pstdev(scores)
    mean, std = (getattr(members[0].config, f"ensemble_{name}") for name in ("mean", "std"))
    assert mean == pytest.approx(statistics.fmean(together), abs=1e-3)
    assert std == pytest.approx(statistics.pstdev(together), abs=1e-3)
    wanted = (wanted - mean) / std
    assert joined.item() == pytest.approx(wanted, abs=1e-5)
    metrics = json.loads((world / "results/reward/r1/metrics.json").read_text())
    assert metrics["disagreement"] > 0
    columns = history(world, stage)[0]
    assert {"loss", "member_2/loss", "member_3/loss"} <= set(columns)


def test_a_reward_model_may_train_on_the_newest_preferences_alone(world: Path):
    path = world / "data/rounds/r1/preferences/train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    older = [row | {"round": "r0"} if number < 10 else row for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in older))
    pairs = []
    for choice in ("all", "newest"):
        set_params(world, "reward", {"preferences": choice})
        assert run(world, "reward@r1") == 0
        metrics = json.loads((world / "results/reward/r1/metrics.json").read_text())
        pairs.append(metrics["pairs"])
    assert pairs == [len(rows), len(rows) - 10]


def test_a_reference_that_is_another_at_the_end_is_no_round_of_ppo(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    at_first = ppo.frozen
    monkeypatch.setattr(ppo, "frozen", lambda models: at_first(models)._replace(reference="other"))
    forget(world, "ppo@r1")

    assert run(world, "ppo@r1") == 3

    assert "self-check 'the reference is unchanged at the end' failed" in capfd.readouterr().err
    assert not (world / "models/rounds/r1/policy").exists()

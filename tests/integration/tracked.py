"""Spools of stages in a folder of their own, what arrives of them in MLflow, and models to send."""

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tasks.tracking.shipping import tracking_uri
from tasks.tracking.spool import RunStart, Spool


@pytest.fixture(name="root")
def root_fixture(experiment: Path) -> Path:
    return experiment


def start(stage: str = "ppo@r1", execution: str = "run-1", kl_coef: float = 0.05) -> RunStart:
    return RunStart(
        stage=stage,
        execution=execution,
        params={"ppo.kl_coef": kl_coef, "run.seed": 0},
        inputs={"data/rounds/r1/preferences": "0123456789abcdef0123456789abcdef.dir"},
        tags={"git.commit": "c0ffee", "round": "r1"},
    )


def run_of(root: Path, stage: str) -> Run:
    runs = runs_of(root, f"tags.`rlhf.stage` = '{stage}'")
    assert len(runs) == 1
    return runs[0]


def runs_of(root: Path, condition: str) -> list[Run]:
    client = MlflowClient(tracking_uri(root))
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], filter_string=condition))


def history(root: Path, run: Run, key: str) -> list[tuple[int, float]]:
    points = MlflowClient(tracking_uri(root)).get_metric_history(run.info.run_id, key)
    return [(point.step, point.value) for point in points]


def repository() -> Path:
    return Path(__file__).parents[2]


def artifacts(root: Path, models: dict[str, str]) -> list[Path]:
    client = MlflowClient(tracking_uri(root))
    folders = [client.get_logged_model(model).artifact_location for model in models.values()]
    return [path for folder in folders for path in Path(folder.removeprefix("file://")).rglob("*")]


def log_steps(spool: Spool, first: int, last: int) -> None:
    for step in range(first, last):
        spool.log(step, {"objective/kl": step / 10, "policy/loss": -float(step)})


@pytest.fixture(name="model_folders", scope="module")
def model_folders_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy and a tiny reward model in Hugging Face format, as the stages publish them."""
    folder = tmp_path_factory.mktemp("models")
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{n}": n + 3 for n in range(13)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "policy")
    config.num_labels, config.score_mean, config.score_std = 1, 0.25, 2.0
    LlamaForSequenceClassification(config).save_pretrained(folder / "reward")
    for name in ("policy", "reward"):
        tokenizer.save_pretrained(folder / name)
        (folder / name / "manifest.json").write_text("{}")
        (folder / name / "training_args.bin").write_bytes(b"\x80\x04.")
    return folder


LOAD_AGAIN = """
import json, sys, mlflow
from safetensors.torch import load_file
policy, reward, folder = sys.argv[1:]
kept = load_file(folder + "/policy/model.safetensors")
writer = mlflow.transformers.load_model(policy)
same = all(bool((writer.model.state_dict()[key] == value).all()) for key, value in kept.items())
scorer = mlflow.transformers.load_model(reward)
inputs = scorer.tokenizer("w1 w2", return_tensors="pt")
raw = scorer.model(input_ids=inputs["input_ids"]).logits.item()
served = float(mlflow.pyfunc.load_model(reward).predict(["w1 w2"])["score"][0])
print(json.dumps({"same": same, "text": writer("w1", max_new_tokens=3)[0]["generated_text"],
                  "raw": raw, "served": served, "mean": scorer.model.config.score_mean}))
"""

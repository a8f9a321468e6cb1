"""A reward model as the annotator of the stage `label`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from feedback.judges import RewardModelAnnotator
from feedback.judgments import Pair
from preferences.records import Judgment, Prompt
from rlhf.chat import TokenizerError
from rlhf.classifiers import load_classifier, load_text_encoder, reads_text
from rlhf.compute import Compute
from rlhf.ensembles import load_scorer, member_folders
from rlhf.frozen import freeze
from rlhf.model_folders import ModelFolderError, is_reward_model
from rlhf.models import load_tokenizer
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from rlhf.templates import TemplateError
from tasks.params.loading import RunParams
from tasks.running.models import start_compute
from tasks.running.outcome import StageEnd


def ask_reward_model(folder: Path, pairs: Sequence[Pair], run: RunParams) -> list[Judgment]:
    """One judgment of each pair by the scores of a folder: ours, an ensemble, or any classifier.

    Raises:
        StageEnd: the folder is missing, its model is no sequence classifier of one label or two, or
            it cannot read a pair.
    """
    compute = start_compute(run)
    try:
        return _judged(folder, pairs, compute)
    except (ModelFolderError, TokenizerError, TemplateError) as error:
        raise StageEnd("bad_input", f"label.reward_model: {error}") from None


def _judged(folder: Path, pairs: Sequence[Pair], compute: Compute) -> list[Judgment]:
    loaded, encoder = _scorer(folder, compute.device)
    model = freeze(loaded, compute)

    def score(prompt: Prompt, response: str, finished: bool) -> float:
        row = encoder.encode(prompt, response, finished=finished)
        ids = torch.tensor([row], device=compute.device)
        with torch.no_grad(), compute.autocast():
            return float(model(ids, torch.ones_like(ids, dtype=torch.bool)))

    annotator = RewardModelAnnotator(score, name=folder.name[:64], version=_version(folder))
    return annotator.judge(pairs)


def _scorer(folder: Path, device: torch.device) -> tuple[RewardModel, Encoder]:
    if is_reward_model(folder) and not reads_text(folder):
        return load_scorer(folder, device), Encoder(load_tokenizer(folder))
    return load_classifier(folder, device), load_text_encoder(folder)


def _version(folder: Path) -> str:
    """A hash of configuration and weights, of an ensemble's members in their order."""
    digest = hashlib.sha256()
    for member in member_folders(folder):
        for path in sorted([member / "config.json", *member.glob("*.safetensors")]):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

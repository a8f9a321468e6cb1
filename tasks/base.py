"""Stage `base`: the model everything starts from, pre-trained here or used as it is."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from preferences.demonstrations import prompts_of, read_demonstrations, text_of
from preferences.loading import load_corpus
from rlhf import pretrain
from rlhf.chat import Prompt, TokenizerError, check_template, encode_prompt, unwritten_roles
from rlhf.family_checks import UnsupportedModelError, check_policy, words_beyond
from rlhf.lora_targets import check_targets
from rlhf.model_folders import ModelFolderError
from rlhf.models import load_policy, load_tokenizer
from rlhf.optimisers import Optimiser, Training
from rlhf.packing import PackingError, check_packing
from rlhf.positions import PositionsError, beyond_training, check_positions, longest_row
from rlhf.special_ids import load_special_ids, write_stops
from rlhf.template_args import set_template_args
from rlhf.templates import TemplateError
from tasks.own_data.tokenizer_files import changed_text
from tasks.params.embedded_recipe import embedded_recipe
from tasks.params.loading import Params
from tasks.running.metrics_file import write_metrics
from tasks.running.models import (
    ERRORS,
    load_prompts,
    seal_model,
    seeds_of,
    start_compute,
    write_model,
)
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress
from tasks.running.resuming import Checkpoints
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.tracking.spool import Output

INPUTS = ("data/prepared",)

log = logging.getLogger(__name__)

READ = [
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
    "model.safetensors",
    "model-*-of-*.safetensors",
]
"""Files of a hub repository that are read: config, tokenizer, template, weights in one format."""

BELOW = ["*/*"]
"""Folders of a hub repository hold the same weights in other formats."""

TRIED = 4
"""Prompts that a model of one's own is tried on."""

REFUSED = (
    ModelFolderError, TokenizerError, UnsupportedModelError, PackingError, PositionsError,
)  # fmt: skip
"""What a model of one's own may turn out to be unfit by."""


def run(stage: Stage) -> None:
    """Pre-train the embedded model, or use one in Hugging Face format."""
    if stage.params.base.model is None:
        model, tokenizer, metrics = _pretrain(stage)
    else:
        model, tokenizer, metrics = _take(stage)
    if longer := beyond_training(model, _longest_rows(stage.params)):
        log.warning("%s: %s", stage.name, longer)
    folder = write_model(stage, model, tokenizer, "models/base")
    write_stops(folder, load_special_ids(folder, tokenizer))
    seal_model(stage, folder)
    results = stage.staging.directory("results/base")
    write_metrics(results, metrics)
    stage.write_history(results)
    stage.final(metrics)
    stage.keep(Output("artifact", Path("results/base")))


def _pretrain(stage: Stage) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    params = stage.params.base.embedded
    compute, seeds = start_compute(stage.params.run, training=True), seeds_of(stage)
    documents = load_corpus(Path("data/prepared/corpus.jsonl"))
    if not documents:
        raise StageEnd(
            "bad_input",
            "data/prepared/corpus.jsonl: no documents to pre-train the embedded model "
            "on; set prepare.files.corpus, or name a model of your own in base.model",
        )
    demonstrations = read_demonstrations(Path("data/prepared/demonstrations.jsonl"))
    texts = [*documents, *(text_of(row) for row in demonstrations)]
    tokenizer = pretrain.train_tokenizer(texts, params.vocabulary_size)
    model = pretrain.build_model(params, tokenizer, seeds).to(compute.device)
    rows = pretrain.pack_documents(tokenizer, documents, params.sequence_length)
    if len(rows) < params.batch_size:
        raise StageEnd(
            "bad_input",
            f"data/prepared/corpus.jsonl: {len(documents)} documents fill {len(rows)} "
            f"sequences of {params.sequence_length} tokens; one batch needs {params.batch_size}",
        )
    training = Training(model, Optimiser(params.optimiser, model.named_parameters()))
    checkpoints = Checkpoints(stage, training)
    progress = Progress(stage.name, params.steps, "steps", done=training.step)
    steps = pretrain.train(training, rows, params, compute=compute, seeds=seeds)
    for step in checkpoints.after_each(steps):
        stage.log(training.step, {"loss": step.loss, "grad_norm": step.grad_norm})
        progress.step(loss=step.loss)
    progress.close()
    return (
        model,
        tokenizer,
        {
            "loss": stage.history[-1]["loss"],
            "parameters": model.num_parameters(),
            "vocabulary": len(tokenizer),
            "tokens": params.steps * params.batch_size * params.sequence_length,
        },
    )


def _take(stage: Stage) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """A model of the user's own, once it has shown that it can do what later stages need."""
    params = stage.params.base
    assert params.model is not None
    folder = Path(params.model)
    if not folder.is_dir():
        folder = _fetch(params.model, params.revision)
    compute = start_compute(stage.params.run)
    try:
        tokenizer = load_tokenizer(folder)
        if wrong := changed_text(folder, tokenizer):
            raise UnsupportedModelError(wrong)
        set_template_args(tokenizer, params.chat_template_args)
        check_template(tokenizer)
        if tokenizer.chat_template is None:
            _refuse_messages()
        else:
            _refuse_turns(tokenizer)
        model = load_policy(folder, compute.device)
        end = load_special_ids(folder, tokenizer).eos
        rows = load_prompts(Path("data/prepared/prompts/train.jsonl"))[:TRIED]
        prompts = [[*encode_prompt(tokenizer, row["prompt"]), end] for row in rows]
        check_positions(model, _longest_rows(stage.params))
        check_policy(model, prompts)
        _refuse_words(words_beyond(model, tokenizer))
        _check_adapters(stage.params, model)
        for setting, asked in _packing(stage.params).items():
            if asked:
                check_packing(model.base_model, prompts, setting=setting)
    except REFUSED as error:
        raise StageEnd("bad_input", f"base.model {params.model}: {error}") from None
    if problem := embedded_recipe(stage.params, model.num_parameters()):
        raise StageEnd("bad_input", f"base.model {params.model}: {problem}")
    return (
        model,
        tokenizer,
        {
            "parameters": model.num_parameters(),
            "vocabulary": len(tokenizer),
        },
    )


def _check_adapters(params: Params, model: PreTrainedModel) -> None:
    """Later stages would end at a layer that cannot have an adapter.

    Raises:
        ModelFolderError: `lora.targets` of a section names one.
    """
    trained = {"sft": model, "reward": model.base_model, "ppo": model}
    for section, part in trained.items():
        lora = getattr(params, section).lora
        if lora is not None:
            check_targets(part, lora.targets or (), setting=f"{section}.lora.targets")


def _refuse_messages() -> None:
    """Messages need a chat template; a later stage would end at the first of them.

    Raises:
        TokenizerError: a prompt, demonstration or preference has messages.
    """
    for where, line in _prepared():
        row = json.loads(line)
        if "messages" in row or not isinstance(row.get("prompt", ""), str):
            raise TokenizerError(
                f"its tokenizer has no chat template, and {where}, holds messages; add a "
                "chat_template.jinja to the model's folder, or give text"
            )


def _refuse_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    """Some templates take no system's message, or no two of one side in a row.

    A later stage would end at the first prompt with such turns, `test` after all rounds. Others
    leave out what a system says: judges would read what the policy never sees. Who speaks decides,
    so one prompt of each form is tried.

    Raises:
        TokenizerError: the template does so with a prompt, demonstration or preference.
    """
    tried: set[tuple[str, ...]] = set()
    for where, line in _prepared():
        row = json.loads(line)
        for prompt in prompts_of(row) if {"prompt", "messages"} & row.keys() else ():
            roles = () if isinstance(prompt, str) else tuple(turn["role"] for turn in prompt)
            if not roles or roles in tried:
                continue
            tried.add(roles)
            if problem := _problem_with(tokenizer, prompt, roles):
                raise TokenizerError(f"{problem}: {where}, with the roles {', '.join(roles)}")


def _prepared() -> Iterator[tuple[str, str]]:
    """The lines of all prepared data, each behind its place."""
    for path in sorted(Path("data/prepared").rglob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield f"{path}, line {number}", line


def _problem_with(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, roles: Sequence[str]
) -> str | None:
    """What the chat template does wrong with a prompt of these roles; mostly nothing."""
    try:
        encode_prompt(tokenizer, prompt)
        left_out = unwritten_roles(tokenizer, roles)
    except TemplateError as error:
        return str(error)
    said = " and ".join(left_out)
    return f"its chat template leaves out what {said} says" if left_out else None


def _refuse_words(words: Sequence[str]) -> None:
    """A later stage would end at the first of these, which have no embeddings.

    Raises:
        UnsupportedModelError: a prompt, demonstration or preference has one.
    """
    written = {word: json.dumps(word, ensure_ascii=False)[1:-1] for word in words}
    for where, line in _prepared() if words else ():
        if found := [word for word, text in written.items() if text in line]:
            raise UnsupportedModelError(
                f"its tokenizer knows {found[0]}, which {where}, has, but the model has no "
                "embedding for it (resize_token_embeddings makes one)"
            )


def _longest_rows(params: Params) -> dict[str, int]:
    """What the later stages allow, which would end there otherwise."""
    lengths = {"sft.max_tokens": params.sft.max_tokens}
    if params.reward.model is None:
        lengths["reward.max_tokens"] = params.reward.max_tokens
    sample, ppo, evaluate = params.sample, params.ppo, params.evaluate
    for name, prompt, sampling in (
        ("sample", sample.max_prompt_tokens, sample.sampling),
        ("ppo", ppo.max_prompt_tokens, ppo.sampling),
        ("evaluate", evaluate.max_prompt_tokens, evaluate.sampling),
    ):
        lengths |= longest_row(name, prompt, sampling.max_new_tokens)
    return lengths


def _packing(params: Params) -> dict[str, bool]:
    """Which of the later stages are to pack rows, which would end there otherwise."""
    return {
        "sft.packing": params.sft.packing,
        "reward.packing": params.reward.packing,
        "ppo.packing": params.ppo.packing,
    }


def _fetch(name: str, revision: str | None) -> Path:
    """The folder of a model of the hub, in the local cache, with the files that are read alone."""
    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=READ, ignore_patterns=BELOW)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise StageEnd("bad_input", f"base.model {name}: {error}") from None


if __name__ == "__main__":
    sys.exit(run_stage("base", run, inputs=INPUTS, errors=ERRORS))

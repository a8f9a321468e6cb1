"""Logs a model folder in Hugging Face format as an MLflow model, without loading it.

`mlflow.transformers.log_model` wants the model in memory: five seconds of imports, a second
serialisation, and with transformers 5 its path form fails. The folder that it would write is
simple, so we write it: an `MLmodel` description with the `transformers` and `python_function`
flavours, the weights and configuration under `model/`, the tokenizer under
`components/tokenizer/`. MLflow alone loads it again in any process
(`mlflow.transformers.load_model`, `mlflow.pyfunc.load_model`); a test checks this.

A policy is logged as a model of MLflow's chat task. What MLflow itself would serve for that task
takes messages and refuses bare text, so `served_policy.py` goes along under `code/` and takes both.
Of the model folder only safetensors, JSON and text are taken along: nothing in it can run code, and
there is no pickle.
"""

import importlib.metadata
import json
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature
from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA
from mlflow.types.schema import ParamSchema, ParamSpec

from tasks.tracking.spool import link_or_copy
from tasks.tracking.store import Store
from tasks.workspace.shared_weights import DRAFTS
from tasks.workspace.worktrees import WORK

ModelKind = Literal["policy", "reward_model"]

SAFE_SUFFIXES = {".safetensors", ".json", ".txt", ".jinja", ".model"}
TOKENIZER_FILES = ("tokeniz", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")
REQUIREMENTS = ("mlflow", "torch", "transformers", "tokenizers", "safetensors", "accelerate")
TASKS: Mapping[ModelKind, tuple[str, str]] = {
    "policy": ("text-generation", "TextGenerationPipeline"),
    "reward_model": ("text-classification", "TextClassificationPipeline"),
}
CHAT_TASK = "llm/v1/chat"
SERVING_CODE = Path(__file__).with_name("served_policy.py")
SERVING_PARAMS = ParamSchema(
    [
        ParamSpec("temperature", "double", 1.0),
        ParamSpec("top_p", "double", 1.0),
        ParamSpec("max_tokens", "long", 256),
    ]
)
"""What a request to a served policy may set; the defaults sample as in training."""


def log_model(
    store: Store, run_id: str, kind: ModelKind, folder: Path, tags: Mapping[str, str]
) -> str:
    """Log the Hugging Face model in `folder` as an output of a run; the logged model's id.

    A model that an interrupted call left half-sent is deleted first. Ask `finished_model` before:
    where the run has its model already, this logs a second one.

    Raises:
        FileNotFoundError: `folder` has no config.json.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _drop_unfinished(store, run_id, tags["rlhf.output"])
    params = {key: str(value) for key, value in config.items() if key.startswith("score_")}
    model = store.client.create_logged_model(
        store.experiment,
        name=kind,
        source_run_id=run_id,
        tags=dict(tags),
        params=params,
        model_type=kind,
    )
    # On the same disk, and not among outputs, where a kill would leave it to change their hash.
    roots = (one for one in folder.absolute().parents if (one / WORK).is_dir())
    place = next((root / DRAFTS for root in roots), folder.parent)
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as draft:
        _write_folder(Path(draft), kind, folder, config["architectures"][0])
        _describe(kind, config["architectures"][0], run_id, model.model_id).save(
            str(Path(draft) / "MLmodel")
        )
        store.client.log_model_artifacts(model.model_id, draft)
    store.client.finalize_logged_model(model.model_id, "READY")
    store.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def finished_model(store: Store, run_id: str, output: str) -> str | None:
    """The id of the model that a run has logged for an output; None where it has not, or in part.

    It has where the note of that was lost, or another address led to the same server meanwhile.
    """
    ready = [one for one in _logged(store, run_id, output) if one.status == LoggedModelStatus.READY]
    if not ready:
        return None
    first = min(ready, key=lambda one: one.creation_timestamp).model_id
    outputs = store.client.get_run(run_id).outputs
    if first not in {one.model_id for one in (outputs.model_outputs if outputs else ())}:
        store.client.log_outputs(run_id, [LoggedModelOutput(first, step=0)])
    return str(first)


def _drop_unfinished(store: Store, run_id: str, output: str) -> None:
    for model in _logged(store, run_id, output):
        # A finished one may be what a registered version stands for.
        if model.status != LoggedModelStatus.READY:
            store.client.delete_logged_model(model.model_id)


def _logged(store: Store, run_id: str, output: str) -> list[LoggedModel]:
    models = store.client.search_logged_models(
        [store.experiment], filter_string=f"source_run_id = '{run_id}'"
    )
    return [model for model in models if model.tags.get("rlhf.output") == output]


def _describe(kind: ModelKind, architecture: str, run_id: str, model_id: str) -> Model:
    """The MLmodel description with both flavours."""
    task, pipeline = TASKS[kind]
    flavor: dict[str, Any] = {
        "task": task,
        "instance_type": pipeline,
        "pipeline_model_type": architecture,
        "source_model_name": kind,
        "model_binary": "model",
        "components": ["tokenizer"],
        "tokenizer_type": "AutoTokenizer",
    }
    model = Model(run_id=run_id, model_id=model_id)
    served: dict[str, Any] = {
        "python_version": platform.python_version(),
        "env": {"virtualenv": "python_env.yaml"},
    }
    if kind == "policy":
        flavor["inference_task"] = CHAT_TASK
        served |= {"loader_module": SERVING_CODE.stem, "code": "code", "data": "model"}
        model.metadata = {"task": CHAT_TASK}
        model.signature = _chat_signature()
    else:
        # Scores as the model gives them; the pipeline would squash them by a sigmoid.
        served["config"] = {"function_to_apply": "none"}
        served |= {"loader_module": "mlflow.transformers", "model_binary": "model"}
    model.add_flavor("transformers", transformers_version=_version("transformers"), **flavor)
    model.add_flavor("python_function", **served)
    return model


def _chat_signature() -> ModelSignature:
    """MLflow's signature of the chat task, enforced by the serving code.

    MLflow itself would refuse text that does not come as messages.
    """
    signature = ModelSignature(
        CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA, params=SERVING_PARAMS
    )
    signature._is_signature_from_type_hint = True
    return signature


def _write_folder(draft: Path, kind: ModelKind, folder: Path, architecture: str) -> None:
    """Everything in the MLflow model except its description. Weights are linked if possible."""
    (draft / "components" / "tokenizer").mkdir(parents=True)
    (draft / "model").mkdir()
    # Folders within are the further members of an ensemble, and adapters.
    for source in sorted(path for path in folder.rglob("*") if path.suffix in SAFE_SUFFIXES):
        target = draft / "model" / source.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source, target)
        if source.parent == folder and source.name.startswith(TOKENIZER_FILES):
            link_or_copy(source, draft / "components" / "tokenizer" / source.name)
    if kind == "policy":
        (draft / "code").mkdir()
        shutil.copyfile(SERVING_CODE, draft / "code" / SERVING_CODE.name)
    packages = "".join(f"{name}=={_version(name)}\n" for name in REQUIREMENTS)
    (draft / "requirements.txt").write_text(packages, encoding="utf-8")
    (draft / "python_env.yaml").write_text(
        f"python: {platform.python_version()}\ndependencies:\n- -r requirements.txt\n",
        encoding="utf-8",
    )
    (draft / "README.txt").write_text(
        f"{kind} ({architecture}), weights in Hugging Face format under model/.\n", encoding="utf-8"
    )


def _version(package: str) -> str:
    return importlib.metadata.version(package)

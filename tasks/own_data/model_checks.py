"""Whether models that params.yaml names can be used, without loading their weights."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf.params.reward import NO_MODEL
from rlhf.reward_functions import RewardFunction, RewardFunctionError, own_function
from tasks.own_data.hub_checks import Problem, hub_problems
from tasks.own_data.weight_files import missing_weights
from tasks.params.embedded_recipe import embedded_recipe
from tasks.params.high_rates import high_rates
from tasks.params.loading import Params


def model_problems(params: Params, root: Path) -> Iterator[Problem]:
    """Problems with the base model, and with a reward model used as annotator."""
    base = params.base
    if base.model is not None and (root / base.model).is_dir():
        yield from _own_problems(params, root / base.model)
    elif base.model is not None and base.revision is not None:
        yield from hub_problems("base.model", base.model, base.revision, "model")
    for key, folder in scorers(params, root).items():
        yield from ((key, text) for text in _scores_problems(folder))
        if key == "reward.model" and (folder / "member_2").is_dir():
            text = f"{_shown(folder, root)} is an ensemble, expected one model; name a member"
            yield key, text
    yield from _start_problems(params, root)
    function = own_function(params.ppo.rewards)
    if function is not None:
        yield from _function_problems(function, root)
    for number, source in enumerate(params.prepare.sources):
        if source.revision is not None and not (root / source.path).exists():
            key = f"prepare.sources.{number}.path"
            yield from hub_problems(key, source.path, source.revision, "dataset")


def model_notes(params: Params, root: Path) -> Iterator[str]:
    """What the user should know of models without problems.

    Rates that may break the policy's, and texts that a scorer cannot read.
    """
    base = params.base.model
    if base is not None and (root / base).is_dir():
        yield from high_rates(params, _parameters(root / base))
    for key, folder in scorers(params, root).items():
        from rlhf.classifiers import longest_of  # noqa: PLC0415
        from rlhf.positions import longest_row  # noqa: PLC0415

        allowed: dict[str, int] = {}
        for name in ("sample", "ppo", "evaluate"):
            section = getattr(params, name)
            allowed |= longest_row(name, section.max_prompt_tokens, section.sampling.max_new_tokens)
        most = longest_of(_config(folder))
        if longer := [keys for keys, tokens in allowed.items() if most and tokens > most]:
            yield (
                f"{key}: {_shown(folder, root)} reads at most {most} of its tokens, but "
                f"{', '.join(longer)} may be more of the policy's; a longer text ends the stage, "
                "so lower them unless prompts and responses are short"
            )


def scorers(params: Params, root: Path) -> dict[str, Path]:
    """Key -> the folder of a reward model that scores or annotates, where there is one."""
    label = params.label
    judges = "reward_model" in (label.annotators, params.evaluate.judge)
    named = {"label.reward_model": label.reward_model if judges else None}
    named["reward.model"] = params.reward.model
    return {
        key: root / name
        for key, name in named.items()
        if name is not None and name != NO_MODEL and (root / name).is_dir()
    }


def _shown(folder: Path, root: Path) -> Path:
    return folder.relative_to(root) if folder.is_relative_to(root) else folder


def _own_problems(params: Params, folder: Path) -> Iterator[Problem]:
    found = (
        list(_no_policy_problems(folder))
        or list(folder_problems(folder))
        or list(_recipe_problems(params, folder))
    )
    yield from (("base.model", text) for text in found)
    if not found:
        yield from _args_problems(folder, params.base.chat_template_args)


def folder_problems(folder: Path) -> Iterator[str]:
    """Why a folder cannot be a base model, by its config, its tokenizer and its files' headers."""
    # Importing transformers takes seconds; only runs with a model of their own pay for it.
    from rlhf.chat import TokenizerError, check_template, check_tokenizer  # noqa: PLC0415
    from rlhf.model_folders import ModelFolderError, require_weights  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415
    from tasks.own_data.model_tokenizers import read_own_tokenizer  # noqa: PLC0415
    from tasks.own_data.tokenizer_files import changed_text  # noqa: PLC0415

    try:
        tokenizer = read_own_tokenizer(folder)
        check_tokenizer(tokenizer, source=str(folder))
        require_weights(folder)
        if wrong := missing_weights(folder) or changed_text(folder, tokenizer):
            yield wrong
        check_template(tokenizer)
    except (ModelFolderError, TokenizerError) as error:
        yield str(error)
    except TemplateError:
        pass  # One that needs arguments; `base` tries it with those of params.yaml.


def _no_policy_problems(folder: Path) -> Iterator[str]:
    """A model that scores, as its config says: one with tied embeddings would load as a policy."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = (config.get("architectures") or ["no architecture"])[0]
    except (OSError, ValueError, AttributeError):
        return  # Said by `folder_problems`.
    if "score_std" in config or str(kind).endswith("ForSequenceClassification"):
        yield f"{folder}: a model that scores ({kind} in config.json), expected a causal model"


def _recipe_problems(params: Params, folder: Path) -> Iterator[str]:
    if problem := embedded_recipe(params, _parameters(folder)):
        yield f"{params.base.model}: {problem}"


def _parameters(folder: Path) -> int:
    """Weights in the folder's safetensors files, by the shapes in their headers."""
    from safetensors import safe_open  # noqa: PLC0415

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        count += sum(math.prod(shape) for shape in shapes)
    return count


def _args_problems(folder: Path, args: Mapping[str, Any]) -> Iterator[Problem]:
    from rlhf.models import load_tokenizer  # noqa: PLC0415
    from rlhf.template_args import set_template_args  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    try:
        set_template_args(load_tokenizer(folder), args)
    except TemplateError as error:
        yield "base.chat_template_args", str(error)


def _scores_problems(folder: Path) -> Iterator[str]:
    """What keeps a folder from scoring responses, as far as its config says."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        yield f"{folder}: not a model folder in Hugging Face format (no config.json)"
        return
    except ValueError as error:
        yield f"{folder}/config.json: not JSON ({error})"
        return
    found = list(_kind_problems(folder, config)) or list(_config_problems(folder))
    yield from found or _files_problems(folder)


def _files_problems(folder: Path) -> Iterator[str]:
    """Weights that cannot be read, and a tokenizer that is not there."""
    from rlhf.model_folders import ModelFolderError, require_weights  # noqa: PLC0415
    from tasks.own_data.model_tokenizers import read_own_tokenizer  # noqa: PLC0415
    from tasks.own_data.tokenizer_files import changed_text  # noqa: PLC0415

    try:
        require_weights(folder)
        if wrong := missing_weights(folder) or changed_text(folder, read_own_tokenizer(folder)):
            yield wrong
    except ModelFolderError as error:
        yield str(error)


def _kind_problems(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Why a folder is no reward model of ours, nor a classifier of another's."""
    if "score_std" in config and "reads_text" not in config:
        yield from folder_problems(folder)
        return
    kinds = config.get("architectures") or []
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        found = ", ".join(map(str, kinds)) or "no architecture"
        yield f"{folder}: expected a sequence classifier, found {found} in config.json"
    elif (labels := len(config.get("id2label") or "12")) > 2:
        yield f"{folder}: a classifier of {labels} labels; a reward model has one, or two"


def _config_problems(folder: Path) -> Iterator[str]:
    from rlhf.model_folders import ModelFolderError  # noqa: PLC0415

    try:
        _config(folder)
    except ModelFolderError as error:
        yield str(error)


def _config(folder: Path) -> Any:
    """The folder's config as the library reads it.

    Raises:
        ModelFolderError: it does not.
    """
    from transformers import AutoConfig  # noqa: PLC0415

    from rlhf.model_folders import loading  # noqa: PLC0415

    with loading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _start_problems(params: Params, root: Path) -> Iterator[Problem]:
    """A value model that cannot start from the reward model of others."""
    ppo, reward = params.ppo, params.reward.model
    if not ppo.has_value_function() or ppo.value_init != "reward":
        return
    if reward is None or not (root / reward).is_dir():
        return
    if found := _not_the_policys(params, root):
        yield (
            "ppo.value_init",
            f"reward, but {reward} (reward.model) has {found}, so no value model can start from "
            "it; take zero",
        )


def _not_the_policys(params: Params, root: Path) -> str | None:
    """What the reward model of others has that a value model cannot have, if it is known."""
    from rlhf.chat import TokenizerError  # noqa: PLC0415
    from rlhf.classifiers import load_text_encoder, same_tokens  # noqa: PLC0415
    from rlhf.model_folders import ModelFolderError  # noqa: PLC0415
    from rlhf.models import load_tokenizer  # noqa: PLC0415
    from rlhf.template_args import set_template_args  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    folder, base = root / str(params.reward.model), params.base.model
    own_words = "a tokenizer or a chat template of its own"
    try:
        scorer = _config(folder)
        if base is None:
            # Nobody else has the embedded model's words; ours have a normaliser.
            return None if hasattr(scorer, "score_std") else own_words
        if not (root / base).is_dir():
            return None
        ours, theirs = load_tokenizer(root / base), load_text_encoder(folder).tokenizer
        set_template_args(ours, params.base.chat_template_args)
        policy = _config(root / base)
    except (ModelFolderError, TokenizerError, TemplateError):
        return None  # Said of the folder.
    width, needed = (
        getattr(config.get_text_config(), "hidden_size", None) for config in (scorer, policy)
    )
    if not same_tokens(ours, theirs):
        return own_words
    if scorer.num_labels != 1:
        return f"{scorer.num_labels} labels"
    return None if width == needed else f"hidden states of {width} numbers, not {needed}"


def _function_problems(function: RewardFunction, root: Path) -> Iterator[Problem]:
    if not (root / function.name.rpartition(":")[0]).is_file():
        return  # Said with the other paths.
    try:
        function.check(root)
    except RewardFunctionError as error:
        yield "ppo.rewards.function", str(error).partition(": ")[2]

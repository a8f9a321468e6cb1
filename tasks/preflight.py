"""Looks at what params.yaml names outside of the pipeline, before anything starts.

The stages look again, each at what it reads. Whoever runs the whole pipeline calls this first, so
that a base model that cannot be used is not found out by the second stage.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rlhf.params.base import BaseParams
from tasks.own_files import follow
from tasks.params import FilesParams, Params, ParamsError


def check_inputs(params: Params, root: Path) -> None:
    """Check own data files, base model and word list; paths are relative to `root`.

    Raises:
        ParamsError: every file that is missing, and why the model cannot be used.
    """
    problems = [
        *_missing_files(params.prepare.files, root),
        *_model_problems(params.base, root),
        *_missing_words(params.ppo.rewards.sentiment_words, root),
    ]
    if problems:
        raise ParamsError("\n".join(f"{root / 'params.yaml'}: {problem}" for problem in problems))
    follow(root, params)


def _missing_files(files: FilesParams | None, root: Path) -> Iterator[str]:
    for key, path in dataclasses.asdict(files).items() if files is not None else ():
        if isinstance(path, str) and not (root / path).is_file():
            yield f"prepare.files.{key}: {path}: no such file"


def _missing_words(path: str | None, root: Path) -> Iterator[str]:
    if path is not None and not (root / path).is_file():
        yield f"ppo.rewards.sentiment_words: {path}: no such file"


def _model_problems(base: BaseParams, root: Path) -> Iterator[str]:
    if base.model is None or not (root / base.model).is_dir():
        return
    # transformers takes seconds to import, which only a model of one's own has to cost.
    from rlhf.chat import TokenizerError  # noqa: PLC0415
    from rlhf.model_folders import ModelFolderError  # noqa: PLC0415
    from rlhf.models import load_tokenizer  # noqa: PLC0415

    try:
        load_tokenizer(root / base.model)
    except (ModelFolderError, TokenizerError) as error:
        yield f"base.model: {error}"

"""Params of stage `prepare`; a module of their own, so that a changed default makes it stale."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from preferences.source_params import SourceParams
from rlhf.params.ranges import Count, CountOrZero, Fraction, OpenFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesParams:
    """Your own data, in files or folders as `sources` has them (see data/README.md)."""

    prompts: str
    """{"prompt"}: split by a hash of the prompt into train, heldout and test."""
    demonstrations: str | None = None
    """For SFT: {"prompt", "response"}, {"prompt", "completion"} or {"messages"}. null: SFT trains
    nothing, and the base model, which answers already, takes its place."""
    corpus: str | None = None
    """{"text"} to pre-train the embedded model on; not needed with a base model of your own."""
    preferences: str | None = None
    """Preferences to start from, in this project's own format and JSON Lines; `sources` reads
    others."""
    heldout_fraction: Fraction = 0.1
    """Share of prompts for evaluation after each round."""
    test_fraction: Fraction = 0.1
    """Share of prompts for the one evaluation at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareParams:
    """The data sets: the embedded support desk, or your own files."""

    files: FilesParams | None = None
    """null generates the support desk."""
    sources: tuple[SourceParams, ...] = ()
    """Initial preferences, each data set with its weight; the gate of r1 validates them."""
    max_memory: Annotated[float, Gt(0), Le(1_000_000)] = 4.0
    """GiB that reading `files` and `sources` may take; data that need more are refused."""
    heldout_preferences: OpenFraction = 0.15
    """Share of the prompts of `sources` that are held out."""
    train_templates: Annotated[int, Ge(1), Le(24)] = 24
    """support desk: training templates of each intent that requests are phrased with."""
    corpus_documents: CountOrZero = 42_000
    """support desk: documents for pre-training."""
    demonstrations: Count = 30_000
    """support desk: demonstrations by four kinds of writers."""
    train_prompts: Count = 20_000
    """support desk: prompts that rounds and PPO draw from."""
    heldout_prompts: Annotated[int, Ge(2)] = 512
    """support desk: prompts for the evaluation after each round."""
    test_prompts: Annotated[int, Ge(2)] = 512
    """support desk: prompts for the one evaluation at the end."""

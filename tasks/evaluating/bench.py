"""What the policies of an evaluation share: prompts, draws, and what scores their responses.

Every policy draws with the same numbers, whatever the round: responses are paired by prompt, and
equal policies give equal responses.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.chat import decode_response
from rlhf.compute import Compute
from rlhf.evaluation import kl_to_reference
from rlhf.frozen import load_frozen_policy
from rlhf.intervals import MIN_VALUES, TooFewValuesError
from rlhf.models import load_tokenizer
from rlhf.positions import check_positions, longest_row
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds, load_special_ids
from tasks.generation.responses import Generator
from tasks.running.models import encode_prompts, load_prompts, start_compute
from tasks.running.progress import Progress
from tasks.running.stage import Stage
from tasks.scoring.gold import gold_scores
from tasks.scoring.learned import Texts, score_responses

SFT = Path("models/sft")


@dataclass(frozen=True, slots=True)
class Responses:
    """A policy's responses to the prompts of a split, one per prompt."""

    texts: list[str]
    ids: list[list[int]]
    finished: list[bool]
    gold: list[float] | None
    """Gold scores, where the prompts are the embedded ones."""


class Bench(contextlib.AbstractContextManager["Bench"]):
    """Prompts, tokenizer and settings that all policies of a stage share."""

    def __init__(self, stage: Stage, split: str, *, passes: int):
        """Load the split's prompts and the SFT policy; `passes` is the total number of passes."""
        self._params = stage.params.evaluate
        self._rewards = stage.params.ppo.rewards
        self.compute: Compute = start_compute(stage.params.run)
        self._seeds = Seeds(stage.params.run.seed)
        self._tokenizer = load_tokenizer(SFT)
        self.tokens: SpecialIds = load_special_ids(SFT, self._tokenizer)
        path = Path(f"data/prepared/prompts/{split}.jsonl")
        rows = load_prompts(path)
        kept, encoded, self.too_long = encode_prompts(
            rows, self._tokenizer, self._params.max_prompt_tokens
        )
        if len(kept) < MIN_VALUES:
            raise TooFewValuesError(
                f"{path}: {len(kept)} of {len(rows)} prompts has at most "
                f"{self._params.max_prompt_tokens} tokens (evaluate.max_prompt_tokens); "
                f"expected {MIN_VALUES} or more"
            )
        self.rows = kept[: self._params.prompts]
        self.prompts = encoded[: self._params.prompts]
        self._generator = Generator(stage, self.compute, self.tokens)
        self._progress = Progress(stage.name, passes, "passes")
        self.sft = load_frozen_policy(SFT, self.compute)
        own = self._params
        longest = longest_row("evaluate", own.max_prompt_tokens, own.sampling.max_new_tokens)
        check_positions(self.sft, longest)

    def responses(self, folder: Path) -> Responses:
        """One response of a policy to each prompt."""
        policy = load_frozen_policy(folder, self.compute)
        ids = self._generator.respond(
            folder,
            policy,
            self.prompts,
            self._params.sampling,
            batch_size=self._params.batch_size,
            seed=self._seeds.named("evaluate", "sampling"),
        )
        self._progress.step()
        texts = [decode_response(self._tokenizer, row) for row in ids]
        finished = [row[-1] in self.tokens.stops for row in ids]
        return Responses(texts, ids, finished, self._gold(texts, finished))

    def _gold(self, texts: Sequence[str], finished: Sequence[bool]) -> list[float] | None:
        return gold_scores([row["prompt"] for row in self.rows], texts, finished)

    def scores(self, responses: Responses, reward_model: Path) -> list[float]:
        """Normalised scores by what rewarded the round: its reward model, or rules."""
        texts = Texts(
            prompts=[row["prompt"] for row in self.rows],
            responses=responses.texts,
            finished=responses.finished,
            rows=[[*prompt, *ids] for prompt, ids in zip(self.prompts, responses.ids, strict=True)],
        )
        scores = score_responses(reward_model, texts, self._rewards, self.compute)
        self._progress.step()
        return scores

    def kl(self, responses: Responses, folder: Path) -> list[float]:
        """Exact KL to SFT of each response, in nats."""
        kl = kl_to_reference(
            load_frozen_policy(folder, self.compute),
            self.sft,
            self.prompts,
            responses.ids,
            self._params,
            self.tokens,
            compute=self.compute,
        )
        self._progress.step()
        return kl

    def expect(self) -> None:
        """Note that there is one more pass."""
        self._progress.expect()

    @property
    def served(self) -> dict[str, Any]:
        """How far a server's log-probabilities are from ours, for the metrics."""
        differences = self._generator.differences
        return {"served_logprob_difference": differences} if differences else {}

    def __exit__(self, *_: object) -> None:
        """End the progress bar, and the server that was started."""
        self._generator.__exit__()
        self._progress.close()

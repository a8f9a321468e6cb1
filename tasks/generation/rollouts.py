"""PPO's rollouts from a server that the stage starts anew, with the policy's weights, for each."""

import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf.compute import Compute
from rlhf.lora import merged
from rlhf.model_folders import save_model
from rlhf.models import load_policy
from rlhf.params.sampling import SamplingParams
from rlhf.samplers import SampledElsewhere
from rlhf.shapes import Draws
from rlhf.special_ids import SpecialIds
from tasks.generation.client import Client, Completion, seeds_of_responses
from tasks.generation.same_model import require_known_ids, require_same_model
from tasks.generation.servers import started
from tasks.running.stage import Stage

log = logging.getLogger(__name__)

KEY = "ppo.rollouts"

AFTER_TEMPERATURE = ("--logprobs-mode", "processed_logprobs")
"""Log-probabilities of the distribution that tokens are drawn from; vLLM's default is before the
temperature."""


class RolloutServer:
    """A sampler (`rlhf.samplers`): a server of the weights that the policy has at each call.

    A server that has ended leaves its memory to the update, and one that is started from a folder
    of its own cannot have older weights. No engine's own way to change weights is needed.
    """

    def __init__(
        self,
        stage: Stage,
        tokenizer: PreTrainedTokenizerBase,
        tokens: SpecialIds,
        compute: Compute,
        *,
        sft: Path,
    ) -> None:
        """`sft` is the folder that an adapter is merged into."""
        self._stage, self._tokenizer, self._tokens = stage, tokenizer, tokens
        self._compute, self._sft = compute, sft
        self._work = stage.work.relative_to(stage.root)
        self._folder = self._work / "rollouts"
        self._calls = 0
        log.info(
            "%s: a server samples the rollouts (%s), so the same run may give another policy",
            stage.name,
            KEY,
        )

    def __call__(
        self,
        lm: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        draws: Draws,
    ) -> SampledElsewhere:
        """A response to each prompt, with its log-probabilities.

        Raises:
            StageEnd: there is no server, it has another model, or it ended or went wrong.
        """
        self._calls += 1
        folder = self._folder / f"policy-{self._calls}"
        try:
            self._save(lm, folder)
            run, output = self._stage.params.run, self._work / "server.log"
            with started(folder, run, output, key=KEY, options=AFTER_TEMPERATURE) as client:
                answers = self._answers(client, lm, prompts, sampling, draws)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return SampledElsewhere([answer.ids for answer in answers], [_padded(a) for a in answers])

    def _answers(
        self,
        client: Client,
        lm: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        draws: Draws,
    ) -> list[Completion]:
        require_same_model(
            client,
            lm,
            prompts,
            self._tokens,
            self._compute,
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
        )
        seeds = seeds_of_responses(draws)
        answers = client.complete(prompts, sampling, stop_ids=self._tokens.stops, seeds=seeds)
        require_known_ids(client, lm, answers)
        return answers

    def _save(self, lm: PreTrainedModel, folder: Path) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if (lora := self._stage.params.ppo.lora) is not None:
            lm = merged(lm, load_policy(self._sft, torch.device("cpu")), lora)
        save_model(lm, folder)
        self._tokenizer.save_pretrained(folder)
        torch.cuda.empty_cache()  # What the update no longer needs; nothing without a GPU.


def _padded(answer: Completion) -> list[float]:
    """A number for each id: a server that leaves out the stop id says nothing of it."""
    return [*answer.logprobs, *[math.nan] * (len(answer.ids) - len(answer.logprobs))]

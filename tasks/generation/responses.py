"""Responses of a policy to prompts, from this process or from a server (`run.generation`)."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.generation import in_order
from rlhf.params.sampling import SamplingParams
from rlhf.responses import response_batches
from rlhf.special_ids import SpecialIds
from tasks.generation.client import Client, seeds_of_responses
from tasks.generation.same_model import require_known_ids, require_same_model
from tasks.generation.servers import serving
from tasks.running.progress import Progress, track_batches
from tasks.running.stage import Stage


class Generator(contextlib.AbstractContextManager["Generator"]):
    """Samples responses for a stage; ends the server that it has started."""

    def __init__(self, stage: Stage, compute: Compute, tokens: SpecialIds) -> None:
        """Nothing is started before it is needed."""
        self._stage, self._compute, self._tokens = stage, compute, tokens
        self._open = contextlib.ExitStack()
        self._served: tuple[Path, Client] | None = None
        self.differences: dict[str, float] = {}
        """Model folder -> mean difference of the server's log-probabilities from ours, in nats per
        token; empty where responses were sampled in this process."""

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self._open.close()

    def respond(
        self,
        folder: Path,
        lm: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        *,
        batch_size: int,
        seed: int,
        progress: Progress | None = None,
    ) -> list[list[int]]:
        """One response to each prompt as token ids, a stop id kept.

        The draws depend on the seed and the prompts alone. In this process they are those of
        `rlhf.draws`, and the same on every machine; a server has a seed for each response and may
        give others for the same seed.

        Args:
            folder: the policy's.
            lm: the policy, loaded; what a server says is compared with it.
            prompts: token ids.
            sampling: how to draw.
            batch_size: prompts at a time, in this process.
            seed: of the draws.
            progress: counts the responses, for whoever shows them one by one.

        Raises:
            StageEnd: there is no server, or it has another model.
        """
        if self._stage.params.run.generation == "server":
            client = self._client(folder, lm, prompts, sampling.max_new_tokens)
            seeds = seeds_of_responses(draw_table(seed, prompts, 1))
            answers = client.complete(prompts, sampling, stop_ids=self._tokens.stops, seeds=seeds)
            require_known_ids(client, lm, answers)
            if progress is not None:
                progress.step(len(answers))
            return [answer.ids for answer in answers]
        batches = response_batches(
            lm,
            prompts,
            sampling,
            self._tokens,
            batch_size=batch_size,
            compute=self._compute,
            seed=seed,
        )
        if progress is not None:
            batches = track_batches(batches, progress, len(prompts))
        return in_order(batches, len(prompts))

    def _client(
        self,
        folder: Path,
        lm: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
    ) -> Client:
        if self._served is None or self._served[0] != folder:
            # One server at a time: each takes most of the accelerator's memory.
            self._served = None
            self._open.close()
            log = self._stage.work / "server.log"
            client = self._open.enter_context(serving(folder, self._stage.params.run, log))
            self.differences[folder.as_posix()] = require_same_model(
                client, lm, prompts, self._tokens, self._compute, max_new_tokens=max_new_tokens
            )
            self._served = folder, client
        return self._served[1]

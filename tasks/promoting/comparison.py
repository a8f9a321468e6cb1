"""A candidate and the policy before it, answering the same prompts with the same draws.

Judged as `params.yaml` has policies evaluated: by gold where the prompts are the embedded ones,
else by `evaluate.judge`, which may be what rewarded the candidate's round. Paths are those of the
workspace, which is the current folder.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from preferences.records import Prompt
from rlhf.chat import decode_response, encode_prompt
from rlhf.evaluation import distinct_ngrams, kl_to_reference
from rlhf.frozen import load_frozen_policy
from rlhf.intervals import Interval, mean_interval, win_rate
from rlhf.models import load_tokenizer
from rlhf.responses import respond
from rlhf.seeding import Seeds
from rlhf.special_ids import load_special_ids
from tasks.params.loading import Params
from tasks.promoting.gate import Compared
from tasks.running.models import encode_prompts, load_prompts, start_compute
from tasks.running.outcome import StageEnd
from tasks.scoring.gold import gold_scores
from tasks.scoring.learned import Texts, rewarded_by, score_responses
from tasks.scoring.win_rates import Answers, judged_win_rate

SFT = Path("models/sft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """What a policy says to the prompts, one response each."""

    texts: list[str]
    ids: list[list[int]]
    finished: list[bool]
    prompts: list[list[int]]
    """The prompts as the policy's tokenizer has them."""

    @property
    def length(self) -> float:
        """Mean length in tokens."""
        return statistics.fmean(len(ids) for ids in self.ids)

    @property
    def diversity(self) -> float:
        """Share of different word pairs among all."""
        return distinct_ngrams(self.texts, 2)


class Comparison:
    """The two policies, and what both are measured with."""

    def __init__(self, params: Params, candidate: Path, before: Path, reward_model: Path) -> None:
        """Fix threads and determinism as a stage does."""
        self._params = params
        self._candidate, self._before, self._reward_model = candidate, before, reward_model
        self._compute = start_compute(params.run)
        self._seeds = Seeds(params.run.seed)

    def on(self, split: str) -> Compared:
        """Both on the prompts of a split.

        Raises:
            StageEnd: there are no prompts, or the judge cannot be asked.
        """
        settings = self._params.evaluate
        rows = load_prompts(Path(f"data/prepared/prompts/{split}.jsonl"))
        kept, _, _ = encode_prompts(
            rows, load_tokenizer(self._candidate), settings.max_prompt_tokens
        )
        prompts: list[Prompt] = [row["prompt"] for row in kept[: settings.prompts]]
        ours, theirs = (
            self._responses(folder, prompts) for folder in (self._candidate, self._before)
        )
        judge, wins = self._wins(prompts, ours, theirs)
        return Compared(
            split=split,
            judge=judge,
            wins=wins,
            skipped=len(prompts) - wins.n,
            kl=self._kl(ours),
            length=ours.length,
            length_before=theirs.length,
            diversity=ours.diversity,
            diversity_before=theirs.diversity,
        )

    def _responses(self, folder: Path, prompts: Sequence[Prompt]) -> Responses:
        tokenizer = load_tokenizer(folder)
        tokens = load_special_ids(folder, tokenizer)
        encoded, settings = [encode_prompt(tokenizer, p) for p in prompts], self._params.evaluate
        ids = respond(
            load_frozen_policy(folder, self._compute),
            encoded,
            settings.sampling,
            tokens,
            batch_size=settings.batch_size,
            compute=self._compute,
            seed=self._seeds.named("evaluate", "sampling"),
        )
        return Responses(
            texts=[decode_response(tokenizer, row) for row in ids],
            ids=ids,
            finished=[row[-1] in tokens.stops for row in ids],
            prompts=encoded,
        )

    def _wins(
        self, prompts: Sequence[Prompt], ours: Responses, theirs: Responses
    ) -> tuple[str, Interval]:
        """Who judged, and how often the candidate's response was preferred."""
        gold = gold_scores(prompts, ours.texts, ours.finished)
        gold_before = gold_scores(prompts, theirs.texts, theirs.finished)
        if gold is not None and gold_before is not None:
            return "gold", win_rate(gold, gold_before)
        if (judge := self._params.evaluate.judge) == "reward":
            scores = (self._scores(prompts, responses) for responses in (ours, theirs))
            own = rewarded_by(self._reward_model, self._params.ppo.rewards).replace("_", " ")
            return f"the {own} of the candidate's round", win_rate(*scores)
        share = judged_win_rate(
            judge,
            self._params.label,
            self._params.run,
            prompts=prompts,
            ours=Answers(texts=ours.texts, finished=ours.finished),
            theirs=Answers(texts=theirs.texts, finished=theirs.finished),
        )
        wins = Interval(**{end: share[end] for end in ("mean", "low", "high", "n")})
        return f"label.{judge}", wins

    def _scores(self, prompts: Sequence[Prompt], responses: Responses) -> list[float]:
        """By what rewarded the candidate's round."""
        if not _same_tokens(self._candidate, self._before):
            raise StageEnd(
                "bad_input",
                "the policy before has another tokenizer, whose tokens the reward model of the "
                "round does not read; name another judge in evaluate.judge",
            )
        texts = Texts(
            prompts=prompts,
            responses=responses.texts,
            finished=responses.finished,
            rows=[[*p, *ids] for p, ids in zip(responses.prompts, responses.ids, strict=True)],
        )
        return score_responses(self._reward_model, texts, self._params.ppo.rewards, self._compute)

    def _kl(self, ours: Responses) -> Interval:
        policy, sft = (load_frozen_policy(one, self._compute) for one in (self._candidate, SFT))
        tokens = load_special_ids(self._candidate, load_tokenizer(self._candidate))
        return mean_interval(
            kl_to_reference(
                policy,
                sft,
                ours.prompts,
                ours.ids,
                self._params.evaluate,
                tokens,
                compute=self._compute,
            )
        )


def _same_tokens(first: Path, second: Path) -> bool:
    """Whether two model folders have the same tokenizer, to the byte."""
    files = [folder / "tokenizer.json" for folder in (first, second)]
    return all(file.is_file() for file in files) and len({f.read_bytes() for f in files}) == 1

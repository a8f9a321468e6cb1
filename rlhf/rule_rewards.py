"""Rewards by rule: what a response's text alone says, to be weighted against a learned reward.

For a prompt x, a response y of n words and weights w (`ppo.rewards`):

    length     max(0, 1 - |n - target| / target)
    relevance  |content words of x that occur in y| / |content words of x|
    format     the share of five checks of form that y passes
    sentiment  sum over the words of y of their score: +1 praises, -1 blames
    function   what a function of the user's own returns (`rlhf.reward_functions`)
    score      w_learned * normalised score of the reward model + sum over rules of w * rule(x, y)

The first three lie in 0 to 1 and cannot be raised by saying a thing twice. Sentiment has no bound
and can: it is the word-list reward of the classic sentiment experiment (in the line of Ziegler et
al. 2019), which without a KL penalty is won by repeating one good word.

The rules read the text without special tokens. They are applied once per response; clipping, the
penalties and the KL part come after them (rlhf.reward_shaping).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from rlhf.batches import Rollout
from rlhf.chat import Prompt, decode_rows
from rlhf.distributed import of_first, rank
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.reward_functions import own_function
from rlhf.sentiment_words import NEGATIVE, POSITIVE

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
"""Letters and digits, joined by apostrophes or hyphens: "can't", "twenty-one", "4711"."""

EMBEDDED_WORDS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(POSITIVE.split(), 1.0) | dict.fromkeys(NEGATIVE.split(), -1.0)
)

STOP_WORDS = """
    a about after again all also am an and any are as at be because been before being but by can
    could did do does for from had has have he hello her here hi him his how i if in into is it its
    just me my no not now of off on once only or our out over please she should so some such than
    that the their them then there these they this those to too under up us very was we were what
    when where which while who why will with would you your
"""
"""Words that say nothing of what a prompt is about; single letters say nothing either."""


LearnedScore = Callable[[Sequence[Prompt], Sequence[str], Sequence[bool]], list[float]]
"""Normalised scores of prompts, responses and whether each is finished."""


class WordListError(ValueError):
    """A file of sentiment words that cannot be used; the message names file, line and reason."""


def words_of(text: str) -> list[str]:
    """The words of a text in their order, case folded."""
    return [match.group().casefold() for match in WORD.finditer(text)]


def length_reward(response: str, *, target: int) -> float:
    """1 at `target` words, falling linearly to 0 at no word and at twice as many."""
    return max(0.0, 1.0 - abs(len(words_of(response)) - target) / target)


def relevance_reward(prompt: str, response: str) -> float:
    """Share of the prompt's different content words that occur in the response; 0 without any."""
    asked = {word for word in words_of(prompt) if len(word) > 1}.difference(STOP_WORDS.split())
    return len(asked & set(words_of(response))) / len(asked) if asked else 0.0


def format_reward(response: str, *, finished: bool) -> float:
    """Share of five checks of form that the response passes; 0 for a response without a word.

    It starts with a capital or a digit; it is finished and ends with closing punctuation; no
    sentence occurs twice; no word follows itself; spacing is single and never before punctuation.
    """
    text, words = response.strip(), words_of(response)
    if not words:
        return 0.0
    first = text.lstrip("\"'“‘(")[:1]
    sentences = [" ".join(words_of(part)) for part in re.split(r"[.!?]+", text)]
    sentences = [sentence for sentence in sentences if sentence]
    checks = (
        first.isupper() or first.isdigit(),
        finished and text.rstrip("\"'”’)").endswith((".", "!", "?")),
        len(set(sentences)) == len(sentences),
        all(one != other for one, other in pairwise(words)),
        re.search(r"\s\s|\s[.,;:!?]", text) is None,
    )
    return sum(checks) / len(checks)


def sentiment_reward(response: str, *, words: Mapping[str, float]) -> float:
    """Sum of the scores of the response's words: positive minus negative ones; others count 0."""
    return math.fsum(words.get(word, 0.0) for word in words_of(response))


def load_sentiment_words(path: Path) -> dict[str, float]:
    """Read a list of one word per line (+1), or word, tab and score; `#` starts a comment.

    Raises:
        WordListError: the file cannot be read, has no word, or a line is no single word with a
            finite score, or gives a word a second time.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WordListError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise WordListError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    scores: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            word, score = _read_entry(line, f"{path}, line {number}")
            if word in scores:
                raise WordListError(f"{path}, line {number}: {word!r} is listed a second time")
            scores[word] = score
    if not scores:
        raise WordListError(f"{path}: expected one word per line, found none")
    return scores


def _read_entry(line: str, place: str) -> tuple[str, float]:
    word, tab, text = line.strip().partition("\t")
    word = word.strip()
    if not WORD.fullmatch(word):
        raise WordListError(f"{place}: expected a single word, found {word!r}")
    try:
        score = float(text) if tab else 1.0
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise WordListError(f"{place}: expected a score after the tab, found {text!r}")
    return word.casefold(), score


class MixedScores(NamedTuple):
    """A rollout with the mixed score, and what went into it."""

    rollout: Rollout
    components: dict[str, float]
    """Mean of each component before its weight: `learned` and the rules that count."""


@dataclass(frozen=True, slots=True)
class RuleRewards:
    """The rules of a round, with the tokenizer that turns its ids into text."""

    params: RewardMixParams
    tokenizer: PreTrainedTokenizerBase
    words: Mapping[str, float]
    learned: LearnedScore | None = None
    """The reward model where it reads text; else it has scored the rollout's ids."""
    prompts: Mapping[tuple[int, ...], Prompt] = field(default_factory=dict)
    """Token ids -> the prompt as it is in the data; others are read from their ids."""

    def mix(self, rollout: Rollout) -> MixedScores:
        """The rollout with `scores` replaced by the weighted sum of learned score and rules.

        To be called once per rollout: its scores are taken for the reward model's.
        """
        prompts = decode_rows(self.tokenizer, rollout.prompt_ids, rollout.prompt_mask)
        responses = decode_rows(self.tokenizer, rollout.response_ids, rollout.response_mask)
        ended = rollout.ended.tolist()
        asked = self._asked(rollout, prompts)
        learned = rollout.scores
        if self.learned is not None:
            learned = learned.new_tensor(self.learned(asked, responses, ended))
        values = self.rule_values(asked, responses, ended)
        scores, components = learned * self.params.learned, {}
        if self.params.learned > 0:
            components["learned"] = learned.mean().item()
        for name, weight in self.params.rules().items():
            rule = torch.tensor(values[name], dtype=scores.dtype, device=scores.device)
            scores = scores + weight * rule
            components[name] = rule.mean().item()
        return MixedScores(replace(rollout, scores=scores), components)

    def _asked(self, rollout: Rollout, decoded: Sequence[str]) -> list[Prompt]:
        """The prompts as they are in the data."""
        rows = zip(rollout.prompt_ids.cpu(), rollout.prompt_mask.cpu(), decoded, strict=True)
        return [self.prompts.get(tuple(ids[mask].tolist()), text) for ids, mask, text in rows]

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[str], finished: Sequence[bool]
    ) -> list[float]:
        """The weighted sum of the rules alone, for responses outside of training."""
        values = self.rule_values(prompts, responses, finished)
        weights = self.params.rules()
        rows = zip(*(values[name] for name in weights), strict=True)
        return [
            math.fsum(weight * value for weight, value in zip(weights.values(), row, strict=True))
            for row in rows
        ]

    def rule_values(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        finished: Sequence[bool],
    ) -> dict[str, list[float]]:
        """Each rule that counts, for each response, before its weight.

        The user's function gets the prompts as they are, the other rules what they say.
        """
        functions: dict[str, Callable[[str, str, bool], float]] = {
            "length": lambda _, text, __: length_reward(text, target=self.params.length_target),
            "relevance": lambda prompt, text, _: relevance_reward(prompt, text),
            "format": lambda _, text, end: format_reward(text, finished=end),
            "sentiment": lambda _, text, __: sentiment_reward(text, words=self.words),
        }
        rows = list(zip(map(said, prompts), responses, finished, strict=True))
        values = {
            name: [functions[name](*row) for row in rows]
            for name in self.params.rules()
            if name in functions
        }
        if (function := own_function(self.params)) is not None:
            # Once, whatever it costs: of several processes the first one calls it.
            given = [0.0] * len(rows)
            if rank() == 0:
                given = function.scores(prompts, responses)
            values["function"] = of_first(given)
        return values


def said(prompt: Prompt) -> str:
    """The text of a prompt; what messages say, a paragraph each, without a chat template."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(message["content"] for message in prompt)


def build_rule_rewards(
    params: RewardMixParams,
    tokenizer: PreTrainedTokenizerBase,
    *,
    learned: LearnedScore | None = None,
    prompts: Mapping[tuple[int, ...], Prompt] | None = None,
) -> RuleRewards | None:
    """The rules of a round, or None where a reward model that reads ids counts alone, as it is.

    Args:
        params: the weights.
        tokenizer: the policy's.
        learned: scores of a reward model that reads text.
        prompts: token ids -> the prompt as it is in the data.

    Raises:
        WordListError: the file of sentiment words cannot be used.
        RewardFunctionError: the user's function cannot be imported.
    """
    if params.learned == 1.0 and not params.rules() and learned is None:
        return None
    if rank() == 0 and (function := own_function(params)) is not None:
        function.check()
    words = EMBEDDED_WORDS
    if params.sentiment_words is not None:
        words = load_sentiment_words(Path(params.sentiment_words))
    return RuleRewards(params, tokenizer, words, learned, prompts or {})

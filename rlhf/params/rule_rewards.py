"""How a learned reward and rules on the text are weighted against each other."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf.params.ranges import Count, NonNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardMixParams:
    """Weights of the learned reward and of rules on the text; the score is their weighted sum."""

    learned: NonNegative = 1.0
    """Weight of the reward model's normalised score; with 0 no reward model is run."""
    length: NonNegative = 0.0
    """Weight of being near `length_target`, 0 to 1."""
    length_target: Count = 20
    """Words at which the length rule gives 1; it falls to 0 at none and at twice as many."""
    relevance: NonNegative = 0.0
    """Weight of the share of the prompt's content words that occur in the response, 0 to 1."""
    format: NonNegative = 0.0
    """Weight of the share of five checks of form that the response passes, 0 to 1."""
    sentiment: NonNegative = 0.0
    """Weight of positive minus negative words; a sum, so it has no bound."""
    sentiment_words: str | None = None
    """File with one word per line, or word, tab and score; null takes the embedded list."""
    function: str | None = None
    """A function of your own, as `mine/check.py:score`: called with lists of prompts and responses,
    it returns a finite number for each. null for none."""
    function_weight: Positive = 1.0
    """Weight of what the function returns."""
    function_seconds: Positive = 60.0
    """How long a call of the function (at most 256 responses) may take."""

    def rules(self) -> dict[str, float]:
        """The weights of the rules that count."""
        weights = {
            "length": self.length,
            "relevance": self.relevance,
            "format": self.format,
            "sentiment": self.sentiment,
            "function": 0.0 if self.function is None else self.function_weight,
        }
        return {name: weight for name, weight in weights.items() if weight > 0}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Impossible combinations, as (key, what is wrong)."""
        if self.learned == 0 and not self.rules():
            yield "learned", "all weights are 0: nothing is left to reward"
        if self.sentiment_words is not None and self.sentiment == 0:
            yield "sentiment_words", "has no effect while sentiment is 0"
        if self.function is not None and not all(self.function.rpartition(":")[::2]):
            yield (
                "function",
                f"expected FILE:FUNCTION, such as mine/check.py:score, found {self.function!r}",
            )

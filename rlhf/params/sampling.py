"""How responses are drawn from a policy."""

from dataclasses import dataclass

from rlhf.params.ranges import Count, CountOrZero, Fraction, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How responses are drawn from a policy."""

    temperature: Positive = 0.9
    """Divides the logits before sampling."""
    top_k: CountOrZero = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: Fraction = 1.0
    """Keep the smallest set of tokens whose probability reaches p; 1 keeps all."""
    min_new_tokens: CountOrZero = 0
    """The end token is impossible before this many tokens."""
    max_new_tokens: Count = 48
    """A response is cut after this many tokens; it then has no end token."""

    def is_plain(self) -> bool:
        """Whether the distribution sampled from is softmax(logits / temperature) itself."""
        return self.top_k == 0 and self.top_p == 1.0 and self.min_new_tokens == 0

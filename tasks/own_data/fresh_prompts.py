"""Whether there are prompts for all rounds: each asks for prompts that have no preference yet."""

from collections.abc import Iterator, Mapping

from tasks.params.loading import Params, RoundParams


def prompt_notes(params: Params, prompts: int) -> Iterator[str]:
    """What a later round may lack, of so many training prompts without preferences.

    No more than a note: ties and pairs that the gate leaves out give their prompts back.
    """
    if params.label.annotators == "none":
        return  # Nobody labels, so every round may ask all prompts.
    rounds, pairs = longest_chain(params.rounds), params.sample.pairs
    if prompts < rounds * pairs and prompts >= pairs:
        yield (
            f"sample.pairs: {rounds} rounds, each on the preferences of the one before, ask "
            f"{rounds} x {pairs} prompts, and {prompts} for training have no preference yet; a "
            f"round that finds fewer than {pairs} left ends there (ties and pairs that are left "
            "out give theirs back): lower it, or add prompts"
        )


def longest_chain(rounds: Mapping[str, RoundParams]) -> int:
    """How many rounds at the most add to each other's preferences; 0 without rounds."""
    lengths: dict[str, int] = {}
    for key, each in rounds.items():
        lengths[f"data/rounds/{key}/preferences"] = 1 + lengths.get(each.preferences, 0)
    return max(lengths.values(), default=0)

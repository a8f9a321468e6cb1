from preferences.baselines import bag_of_words
from preferences.records import Preference


def row(chosen, rejected):
    return Preference(pair_id="", prompt_id="", prompt="p", chosen=chosen, rejected=rejected)


TRAIN = [row(f"kind w{n}", f"rude w{n}") for n in range(30)]


def test_words_of_the_train_side_decide_the_held_out_rows_and_unknown_words_half_of_one():
    heldout = [
        row("so kind", "so rude"),
        row("Kind!", "none"),
        row("none", "RUDE"),
        row("rude again", "kind again"),
        row("other", "words"),
    ]
    found = bag_of_words(TRAIN, heldout)
    assert found is not None
    # As for a reward model beside it, equal scores are half: who knows nothing has 0.5, not 0.
    assert (found.mean, found.n) == (3.5 / 5, 5)


def test_the_same_words_in_another_order_are_undecided():
    found = bag_of_words(TRAIN, [row("kind not rude", "rude not kind")] * 4)
    assert found is not None
    assert (found.mean, found.n) == (0.5, 4)


def test_more_rows_than_are_counted_at_once_are_all_there():
    found = bag_of_words([*TRAIN] * 200, [*TRAIN] * 200)
    assert found is not None
    assert (found.mean, found.n) == (1.0, 6000)


def test_without_rows_there_is_nothing_to_measure():
    assert bag_of_words([], TRAIN) is None
    assert bag_of_words(TRAIN, []) is None

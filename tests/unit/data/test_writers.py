import random
import re
import statistics
from collections import Counter

import pytest

from data.support_desk.lexicon import CLASS_OF
from data.support_desk.rubric import explain, score_response
from data.support_desk.splits import sample_requests
from data.support_desk.templates import select_templates
from data.support_desk.writers import (
    WRITERS,
    UnknownWriterError,
    ideal_response,
    sample_writer,
    write_response,
)

TEN = select_templates(train=10)
REQUESTS = sample_requests("train", 2000, random.Random(11), templates=TEN)


def _scores(writer: str) -> list[float]:
    rng = random.Random(12)
    return [score_response(r.text, write_response(r, writer, rng)) for r in REQUESTS]


@pytest.mark.parametrize(
    ("writer", "low", "high"),
    [
        ("careful", 8.3, 8.9),
        ("hurried", 5.2, 5.8),
        ("grumpy", 2.7, 3.4),
        ("chatty", 4.9, 5.6),
    ],
)
def test_each_writer_scores_as_the_readme_says(writer: str, low: float, high: float) -> None:
    assert low <= statistics.mean(_scores(writer)) <= high


def test_the_mixture_leaves_much_to_learn_and_varies_much() -> None:
    rng = random.Random(13)
    scores = [score_response(r.text, write_response(r, sample_writer(rng), rng)) for r in REQUESTS]
    assert 5.2 <= statistics.mean(scores) <= 5.9
    assert 3.1 <= statistics.stdev(scores) <= 3.8


def test_writers_come_in_their_shares() -> None:
    rng = random.Random(14)
    drawn = Counter(sample_writer(rng) for _ in range(20_000))
    assert sum(WRITERS.values()) == pytest.approx(1.0)
    for writer, share in WRITERS.items():
        assert drawn[writer] / 20_000 == pytest.approx(share, abs=0.02)


def test_every_response_is_well_formed_and_finished() -> None:
    rng = random.Random(15)
    for request in REQUESTS:
        terms = explain(request.text, write_response(request, sample_writer(rng), rng))
        assert (terms["grammar"], terms["repeated"], terms["finish"]) == (0.0, 0.0, 2.0)


def test_responses_fit_into_forty_seven_words_and_marks() -> None:
    rng = random.Random(16)
    for writer in WRITERS:
        answers = [write_response(r, writer, rng) for r in REQUESTS]
        # One token a word or mark, and one more to end the answer: 48 new tokens are enough.
        assert max(len(re.findall(r"\w+|[^\w\s]", answer)) for answer in answers) <= 47


def test_the_careful_writer_writes_twenty_to_twenty_eight_words() -> None:
    rng = random.Random(20)
    lengths = [len(write_response(r, "careful", rng).split()) for r in REQUESTS]
    assert sum(20 <= length <= 28 for length in lengths) / len(lengths) > 0.7
    assert 20 <= statistics.mean(lengths) <= 25


def test_responses_vary_but_never_in_the_same_hands_of_chance() -> None:
    request = REQUESTS[0]
    rng = random.Random(17)
    answers = {write_response(request, "careful", rng) for _ in range(300)}
    assert len(answers) > 100
    again = write_response(request, "chatty", random.Random(18))
    assert again == write_response(request, "chatty", random.Random(18))


def test_only_the_requests_own_name_is_ever_used() -> None:
    rng = random.Random(19)
    for request in REQUESTS:
        words = write_response(request, sample_writer(rng), rng).replace(",", " ").split()
        names = {word.rstrip(".") for word in words} & {
            w for w, k in CLASS_OF.items() if k == "name"
        }
        assert names <= {request.name}


def test_an_ideal_response_names_everything_that_was_asked_about() -> None:
    request = next(r for r in REQUESTS if r.intent == "refund")
    answer = ideal_response(request)
    for word in (request.name, request.order, *(request.product or ())):
        assert word is not None
        assert word in answer


def test_an_unknown_writer_is_refused_by_name() -> None:
    with pytest.raises(UnknownWriterError, match=r"'lazy'.*careful, hurried, grumpy, chatty"):
        write_response(REQUESTS[0], "lazy", random.Random(0))

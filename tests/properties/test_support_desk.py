"""What holds for every request and every answer of the support desk."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.support_desk.corpus import sample_document
from data.support_desk.intents import INTENTS, SPLITS, Intent, Split
from data.support_desk.lexicon import CLASS_OF, SLOT_CLASSES
from data.support_desk.requests import Request, parse_request
from data.support_desk.responses import SENTENCES
from data.support_desk.rubric import explain, score_response
from data.support_desk.splits import draw_request, sample_requests
from data.support_desk.templates import TEMPLATES
from data.support_desk.writers import WRITERS, ideal_response, write_response

seeds = st.integers(0, 2**32 - 1)
# A machine that does other work too is slow now and then; that is no fault of the code.
patient = settings(deadline=None)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return draw_request(
        draw(st.sampled_from(SPLITS)), random.Random(draw(seeds)), templates=TEMPLATES
    )


@st.composite
def answers(draw: st.DrawFn) -> str:
    """Any sentences of the grammar with any slot words, or any text."""
    sentences = []
    for sentence in draw(st.lists(st.sampled_from(sorted(SENTENCES)), max_size=8)):
        words = {kind: draw(st.sampled_from(words)) for kind, words in SLOT_CLASSES.items()}
        sentences.append(sentence.format_map(words))
    sentences += draw(st.lists(st.text(max_size=20), max_size=2))
    return draw(st.sampled_from([" ", "", "  "])).join(sentences)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("intent", INTENTS)
def test_the_ideal_response_scores_exactly_ten(split: Split, intent: Intent) -> None:
    drawn = sample_requests(split, 600, random.Random(4), templates=TEMPLATES)
    sampled = [request for request in drawn if request.intent == intent]
    assert len(sampled) > 20
    for request in sampled:
        assert score_response(request.text, ideal_response(request)) == 10.0


@patient
@given(requests())
def test_a_prompt_and_its_request_are_two_forms_of_the_same(request: Request) -> None:
    assert parse_request(request.text) == request


@patient
@given(st.text())
def test_reading_any_text_gives_a_request_of_that_text_or_nothing(text: str) -> None:
    request = parse_request(text)
    assert request is None or request.text == text


@patient
@given(requests(), answers(), st.booleans())
def test_the_terms_sum_to_the_score_and_never_past_ten(
    request: Request, answer: str, finished: bool
) -> None:
    terms = explain(request.text, answer, finished=finished)
    score = score_response(request.text, answer, finished=finished)
    assert score == math.fsum(terms.values()) <= 10.0


@patient
@given(requests(), answers())
def test_only_four_terms_and_a_good_end_ever_earn(request: Request, answer: str) -> None:
    earning = {term for term, value in explain(request.text, answer).items() if value > 0}
    assert earning <= {"topic", "slots", "name", "polite", "finish"}


@patient
@given(requests(), answers())
def test_an_unfinished_response_never_scores_more(request: Request, answer: str) -> None:
    cut = score_response(request.text, answer, finished=False)
    assert cut <= score_response(request.text, answer)


@patient
@given(requests(), seeds, st.data())
def test_putting_in_a_wrong_slot_word_lowers_the_score(
    request: Request, seed: int, data: st.DataObject
) -> None:
    answer = data.draw(
        st.sampled_from([ideal_response(request)])
        | st.just(write_response(request, "careful", random.Random(seed)))
    )
    right = [word for word in _slot_words(request) if word in answer]
    if not right:
        return
    word = data.draw(st.sampled_from(right))
    others = [other for other in SLOT_CLASSES[CLASS_OF[word]] if other != word]
    wrong = answer.replace(word, data.draw(st.sampled_from(others)))
    assert score_response(request.text, wrong) <= score_response(request.text, answer) - 1.5


def _slot_words(request: Request) -> list[str]:
    words = [request.name, request.order, request.city, *(request.product or ())]
    return [word for word in words if word is not None]


@patient
@given(requests(), st.sampled_from(sorted(WRITERS)), seeds)
def test_the_same_seed_writes_the_same(request: Request, writer: str, seed: int) -> None:
    def write() -> tuple[str, str, list[Request]]:
        rng = random.Random(seed)
        return (
            write_response(request, writer, rng),
            sample_document(rng, templates=TEMPLATES),
            sample_requests("train", 3, rng, templates=TEMPLATES),
        )

    assert write() == write()


@patient
@given(requests(), st.sampled_from(sorted(WRITERS)), seeds)
def test_no_writer_beats_the_ideal_response(request: Request, writer: str, seed: int) -> None:
    assert score_response(request.text, write_response(request, writer, random.Random(seed))) <= 10

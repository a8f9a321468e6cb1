"""Every term of the rubric alone, by numbers worked out by hand, and the ways to cheat it."""

import math
import random
import time

import pytest

from data.support_desk.intents import INTENTS
from data.support_desk.lexicon import shape_of
from data.support_desk.requests import parse_request
from data.support_desk.responses import SENTENCES
from data.support_desk.rubric import UnknownPromptError, explain, score_response
from data.support_desk.splits import sample_requests
from data.support_desk.templates import TEMPLATES
from data.support_desk.writers import ideal_response, write_response

PROMPT = "Hello, this is Clara. Can you refund me? My red lamp is broken. It was order 89."
HELLO = "Hello Clara, thank you for your message."
CONTENT = "I have sent you a refund for the red lamp from order 89."
BYE = "Have a nice day."
IDEAL = f"{HELLO} {CONTENT} {BYE}"


def test_the_ideal_response_earns_every_credit_and_no_cost() -> None:
    terms = explain(PROMPT, IDEAL)
    earned = {term: value for term, value in terms.items() if value}
    assert earned == {"topic": 3.0, "slots": 3.0, "name": 0.5, "polite": 1.5, "finish": 2.0}
    assert score_response(PROMPT, IDEAL) == 10.0


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # without the name, without the closing, without either
        (f"Hello, thank you for your message. {CONTENT} {BYE}", 9.5),
        (f"{HELLO} {CONTENT}", 9.25),
        (CONTENT, 8.0),
        # a plain opening may greet by name
        (f"Hello Clara. {CONTENT}", 8.5),
        # one of two slots; none of two
        ("I have sent you a refund for order 89.", 6.5),
        ("Your refund is on its way.", 5.0),
        # one wrong slot: half the slots' credit and the cost
        (CONTENT.replace("89", "12"), 8.0 - 1.5 - 1.5),
        # adjective and noun are one product, wrong once whichever of them is
        (CONTENT.replace("red", "blue"), 5.0),
        (CONTENT.replace("lamp", "sofa"), 5.0),
        (CONTENT.replace("red lamp", "blue sofa"), 5.0),
        # another customer's name
        (f"{HELLO.replace('Clara', 'Leo')} {CONTENT} {BYE}", 10.0 - 0.5 - 1.5),
        # a city nobody asked about, and an answer to another request
        ("We have it in stock in Oslo.", 2.0 - 1.0 - 1.5),
        # rude once, twice, three times: two count
        (f"You again. {CONTENT}", 6.0),
        (f"You again. {CONTENT} Do not ask again.", 4.0),
        (f"You again. {CONTENT} Do not ask again. Just deal with it.", 4.0),
        # small talk
        (f"{HELLO} We sell many things. {CONTENT} {BYE}", 9.5),
        # a third polite sentence is free, a fourth is not
        (f"{IDEAL} We are always happy to help.", 10.0),
        (
            f"Hello, I am happy to help you. Your refund is on its way. {BYE} "
            "We are always happy to help. Thank you for your patience.",
            6.5 - 0.5,
        ),
        # a sentence said twice
        (f"{IDEAL} {BYE}", 9.0),
        # a second sentence on the topic
        (f"{HELLO} {CONTENT} Your refund is on its way. {BYE}", 9.5),
        # a greeting after the answer, a farewell before it: no credit and a fault
        (f"{CONTENT} {HELLO}", 7.6),
        (f"{BYE} {CONTENT}", 7.6),
        # a private detail
        (f"{CONTENT} The customer lives near our shop.", 3.0),
        # and another one, which costs nothing more
        (
            f"{CONTENT} The customer lives near our shop. "
            "Here is the home address of the customer.",
            3.0,
        ),
        # 34 words are two too many, and the answer has small talk
        (
            f"{HELLO} My cat likes to sleep. {CONTENT} {BYE} Thank you for your patience.",
            10.0 - 0.5 - 0.15 * 2,
        ),
        # no closing mark
        (IDEAL.removesuffix("."), 10.0 - 2.0 - 1.0 - 0.75 - 0.4),
    ],
)
def test_a_response_scores_what_the_table_in_the_readme_gives(
    response: str, expected: float
) -> None:
    assert score_response(PROMPT, response) == pytest.approx(expected)


def test_a_response_that_was_cut_off_loses_what_a_finished_one_gets() -> None:
    assert score_response(PROMPT, IDEAL, finished=False) == pytest.approx(7.0)


def test_a_noun_that_another_word_parts_from_a_wrong_adjective_is_wrong_by_itself() -> None:
    assert explain(PROMPT, "The blue sofa for order 89.")["wrong_slots"] == -1.5
    assert explain(PROMPT, "The blue one for order 89 is a sofa.")["wrong_slots"] == -3.0


def test_a_sentence_with_other_words_in_its_slots_is_no_repetition() -> None:
    other = CONTENT.replace("89", "12")
    assert explain(PROMPT, f"{CONTENT} {other}")["repeated"] == 0.0
    assert explain(PROMPT, f"{CONTENT} {CONTENT} {other} {CONTENT}")["repeated"] == -2.0


@pytest.mark.parametrize("response", ["", " ", "\n\n", "\t \n"])
def test_a_blank_response_scores_minus_one(response: str) -> None:
    assert score_response(PROMPT, response) == -1.0
    assert score_response(PROMPT, response, finished=False) == -1.0


@pytest.mark.parametrize("response", [".", "...", "? ! .", ". . . .", "-."])
def test_marks_without_a_word_score_below_a_blank_response(response: str) -> None:
    assert score_response(PROMPT, response) < -1.0


def test_white_space_around_a_response_does_not_count() -> None:
    assert score_response(PROMPT, f"  {IDEAL}\n") == 10.0


def test_a_prompt_of_another_world_has_no_score() -> None:
    with pytest.raises(UnknownPromptError, match="What is the capital"):
        score_response("What is the capital of France?", IDEAL)


# Ways to cheat

ALL_OPENINGS = [
    f"{hello} Clara, {phrase}."
    for hello in ("Hello", "Hi", "Dear")
    for phrase in ("thank you for your message", "I am happy to help you")
]
POLITE = [text for text, sentence in SENTENCES.items() if sentence.tone == "polite"]
OWN_WORDS = {"name": "Clara", "order": "89", "city": "Oslo", "adjective": "red", "noun": "lamp"}
ONE_OF_EACH_INTENT = [
    next(s.text for s in SENTENCES.values() if s.intent == intent).format_map(OWN_WORDS)
    for intent in INTENTS
]
CHEATS = {
    "all polite phrases": " ".join(POLITE).format_map(OWN_WORDS),
    "all polite phrases around the answer": " ".join([*ALL_OPENINGS, CONTENT, BYE, BYE]),
    "all intents": " ".join([HELLO, *ONE_OF_EACH_INTENT, BYE]),
    "all intents backwards": " ".join([HELLO, *reversed(ONE_OF_EACH_INTENT), BYE]),
    "ideal answer twice": f"{IDEAL} {IDEAL}",
    "ideal answer three times": f"{IDEAL} {IDEAL} {IDEAL}",
    "prompt echoed": PROMPT,
    "prompt echoed politely": f"{HELLO} {PROMPT} {BYE}",
    "slot list": "Clara, red lamp, 89.",
    "slot list politely": f"{HELLO} Red lamp, order 89. {BYE}",
    "keywords": f"{HELLO} refund refund refund red lamp order 89. {BYE}",
    "keyword in a foreign sentence": f"{HELLO} The refund for order 89 is in stock. {BYE}",
    "all orders": f"{HELLO} "
    + " ".join(CONTENT.replace("89", str(order)) for order in range(85, 90))
    + f" {BYE}",
    "two intents, the wrong one first": f"{HELLO} It is cancelled. {CONTENT} {BYE}",
    "glued sentences": f"{HELLO}{CONTENT}{BYE}",
    "glued content": f"Hello Clara, I am sorry for the trouble.{CONTENT} {BYE}",
    "name as a subject": f"Dear Clara is on its way. {BYE}",
    "name as a subject of the content": f"{HELLO} Clara is on its way from order 89. {BYE}",
    "merged content": f"{HELLO} The refund is open from nine to five. {BYE}",
    "cut content": f"{HELLO} I have sent you a refund for the. {BYE}",
    "two halves": f"{HELLO} Your refund for the red lamp lasts three years from today. {BYE}",
    "content in lower case": f"{HELLO} {CONTENT.lower()} {BYE}",
    "content without its full stop": f"{HELLO} {CONTENT.removesuffix('.')} {BYE}",
    "double space": f"{HELLO}  {CONTENT}  {BYE}",
    "line breaks": f"{HELLO}\n{CONTENT}\n{BYE}",
    "placeholders": "Hello {name}, thank you for your message. I have sent you a refund for the "
    "{adjective} {noun} from order {order}. Have a nice day.",
    "rude to open and polite after": f"You again. {HELLO} {CONTENT} Do not ask again. {BYE}",
    "rude out of place": f"Do not ask again. You again. {CONTENT} {BYE}",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_scores_clearly_below_an_honest_response(name: str) -> None:
    assert score_response(PROMPT, CHEATS[name]) < 6.0


@pytest.mark.parametrize("name", ["prompt echoed", "slot list", "placeholders", "line breaks"])
def test_a_cheat_without_one_good_sentence_scores_below_a_polite_dismissal(name: str) -> None:
    assert score_response(PROMPT, CHEATS[name]) < score_response(PROMPT, f"{HELLO} {BYE}") == 4.0


def test_gluing_two_sentences_loses_both_and_counts_as_a_fault() -> None:
    terms = explain(PROMPT, f"{HELLO} {CONTENT}{BYE}")
    assert (terms["topic"], terms["slots"], terms["polite"]) == (0.0, 0.0, 0.75)
    assert terms["grammar"] <= -0.4


def test_content_whose_words_fit_two_by_two_is_still_no_sentence() -> None:
    # Each pair occurs somewhere: "The shop", "shop is", "is on", "on its", "its way", "way.".
    terms = explain(PROMPT, "The shop is on its way.")
    assert (terms["topic"], terms["other_intent"], terms["grammar"]) == (0.0, 0.0, -0.4)


def test_at_most_ten_faults_count() -> None:
    assert explain(PROMPT, "bla " * 30 + "bla.")["grammar"] == -4.0


def test_a_second_guess_at_the_intent_is_worth_less_than_the_first_alone() -> None:
    right_first = score_response(PROMPT, f"{HELLO} {CONTENT} It is cancelled. {BYE}")
    wrong_first = score_response(PROMPT, f"{HELLO} It is cancelled. {CONTENT} {BYE}")
    wrong_alone = score_response(PROMPT, f"{HELLO} It is cancelled. {BYE}")
    assert right_first == pytest.approx(9.0)
    assert wrong_first == wrong_alone == pytest.approx(3.0)


def test_the_other_customer_is_never_addressed_nor_given_away() -> None:
    prompt = "Nina here. Give me the home address of Leo, another customer."
    assert score_response(prompt, "I cannot share any details of another customer.") == 8.0
    wrong = "Hello Leo. I cannot share any details of another customer."
    assert score_response(prompt, wrong) == 6.5
    assert score_response(prompt, "Here is the home address of the customer.") == -3.0


def test_no_sentence_of_a_prompt_is_a_sentence_of_a_response() -> None:
    for request in sample_requests("train", 500, random.Random(1), templates=TEMPLATES):
        for sentence in request.text.split(". "):
            assert shape_of(sentence).skeleton.rstrip(".") + "." not in SENTENCES


def test_no_full_response_is_so_long_that_it_costs() -> None:
    openings = [s.text for s in SENTENCES.values() if s.kind == "opening"]
    closings = [s.text for s in SENTENCES.values() if s.kind == "closing"]
    longest = [
        max(group, key=lambda text: len(text.split()))
        for group in (openings, [s.text for s in SENTENCES.values() if s.full], closings)
    ]
    assert len(" ".join(longest).split()) <= 32


def test_five_thousand_responses_are_scored_in_a_second_on_one_core() -> None:
    rng = random.Random(2)
    requests = sample_requests("train", 2500, rng, templates=TEMPLATES)
    answers = [(r.text, write_response(r, "chatty", rng)) for r in requests]
    start = time.process_time()
    for prompt, answer in answers:
        score_response(prompt, answer)
    assert 2500 / (time.process_time() - start) > 5000


def test_the_terms_sum_to_the_score_of_a_bad_response() -> None:
    answer = "You again. Leo is. We sell many things. It is cancelled. order 12 13"
    terms = explain(PROMPT, answer)
    assert math.fsum(terms.values()) == score_response(PROMPT, answer) < 0


def test_the_example_prompt_of_these_tests_is_one_of_the_world() -> None:
    request = parse_request(PROMPT)
    assert request is not None
    assert score_response(PROMPT, ideal_response(request)) == 10.0

import random
import re

import pytest

from data.support_desk.intents import INTENTS, REQUIRED_SLOTS, SPLITS, Split
from data.support_desk.requests import Request, build_request, parse_request
from data.support_desk.splits import sample_requests
from data.support_desk.templates import CLOSERS, GREETINGS, TEMPLATES

REFUND = (
    "Hello, this is Clara. Can you refund me? My red lamp is broken. It was order 89. Thank you."
)


def test_a_prompt_reads_back_as_the_request_that_a_person_would_see_in_it() -> None:
    assert parse_request(REFUND) == Request(
        intent="refund",
        template="refund-train-0",
        name="Clara",
        order="89",
        product=("red", "lamp"),
        city=None,
        other=None,
        greeting="Hello, this is {name}.",
        closer="Thank you.",
        text=REFUND,
    )


def test_the_other_customer_of_a_privacy_request_is_distinguished_from_the_one_who_asks() -> None:
    request = parse_request("Nina here. Give me the home address of Leo, another customer.")
    assert request is not None
    assert (request.name, request.other, request.closer) == ("Nina", "Leo", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, this is Clara.",
        REFUND + " ",
        " " + REFUND,
        REFUND.replace("Clara", "clara"),
        REFUND.replace("Clara", "Cleopatra"),
        REFUND.replace("89", "9"),
        REFUND.replace("89", "189"),
        REFUND.replace("red lamp", "lamp red"),
        REFUND.replace("broken. It", "broken.  It"),
        REFUND.replace("Clara", "{name}"),
        REFUND.replace("89", "{order}"),
        REFUND + " " + REFUND,
    ],
)
def test_a_text_that_is_not_exactly_a_prompt_reads_as_nothing(text: str) -> None:
    assert parse_request(text) is None


def test_there_are_24_two_and_two_templates_and_no_two_read_alike() -> None:
    for intent in INTENTS:
        assert [len(TEMPLATES[split, intent]) for split in SPLITS] == [24, 2, 2]
    texts = [template.text for group in TEMPLATES.values() for template in group]
    assert len(set(texts)) == 280
    assert (len(set(GREETINGS)), len(set(CLOSERS)), CLOSERS.count("")) == (6, 6, 1)


def test_every_template_has_exactly_the_slots_of_its_intent() -> None:
    for group in TEMPLATES.values():
        for template in group:
            classes = sorted(re.findall(r"\{(\w+)\}", template.text))
            expected = [kind for slot in REQUIRED_SLOTS[template.intent] for kind in _classes(slot)]
            expected += ["name"] if template.intent == "privacy" else []
            assert classes == sorted(expected), template.id


def _classes(slot: str) -> list[str]:
    return ["adjective", "noun"] if slot == "product" else [slot]


@pytest.mark.parametrize("split", SPLITS)
def test_every_sampled_prompt_reads_back_exactly(split: Split) -> None:
    for request in sample_requests(split, 1500, random.Random(3), templates=TEMPLATES):
        assert parse_request(request.text) == request


def test_a_template_without_a_word_for_its_slot_is_refused() -> None:
    template = TEMPLATES["train", "hours"][0]
    with pytest.raises(KeyError, match="city"):
        build_request(template, GREETINGS[0], "", name="Clara", slots={})

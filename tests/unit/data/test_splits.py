import hashlib
import itertools
import json
import random
from collections import Counter

import pytest

from data.support_desk.corpus import sample_document
from data.support_desk.intents import INTENTS, SPLITS, Split
from data.support_desk.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, ORDERS
from data.support_desk.requests import Request
from data.support_desk.splits import (
    SPLIT_OF,
    Combination,
    TooManyRequestsError,
    capacity,
    draw_request,
    sample_requests,
)
from data.support_desk.templates import TEMPLATES, select_templates


def _combinations(request: Request) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {("template", request.template)}
    if request.product:
        found.add(("product", *request.product))
    if request.order:
        found.add(("name_order", request.name, request.order))
    if request.city:
        found.add(("name_city", request.name, request.city))
    return found


def test_no_template_product_or_customer_combination_occurs_in_two_splits() -> None:
    seen = {
        split: set().union(
            *map(_combinations, sample_requests(split, 4000, random.Random(1), templates=TEMPLATES))
        )
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]


def test_which_split_a_combination_belongs_to_never_changes() -> None:
    # Recorded from the first version: a change of it would put held-out prompts into the training
    # texts of everybody who compares with earlier runs.
    table = [
        [kind, *pair, split] for kind, rows in SPLIT_OF.items() for pair, split in rows.items()
    ]
    digest = hashlib.sha256(json.dumps(table, separators=(",", ":")).encode()).hexdigest()
    assert digest == "e76dc0568c7cf8f9315233d21c0dce8a84e43f95a0f8c8d5bad657d8d5465a34"


def test_about_seventy_fifteen_and_fifteen_percent_of_the_combinations_go_to_the_splits() -> None:
    totals: dict[Combination, int] = {"product": 768, "name_order": 2700, "name_city": 1080}
    for kind, total in totals.items():
        counts = Counter(SPLIT_OF[kind].values())
        assert sum(counts.values()) == total
        assert 0.64 < counts["train"] / total < 0.76
        assert 0.11 < counts["heldout"] / total < 0.19


@pytest.mark.parametrize("split", SPLITS)
def test_every_single_word_occurs_in_every_split(split: Split) -> None:
    rng = random.Random(5)
    text = " ".join(draw_request(split, rng, templates=TEMPLATES).text for _ in range(20_000))
    words = set(text.replace(".", " ").replace(",", " ").replace("?", " ").split())
    assert {*NAMES, *CITIES, *ADJECTIVES, *NOUNS, *ORDERS} <= words


def test_the_training_split_gives_sixty_thousand_different_prompts() -> None:
    requests = sample_requests(
        "train", 60_000, random.Random(0), templates=select_templates(train=10)
    )
    assert len({request.text for request in requests}) == 60_000


@pytest.mark.parametrize("split", ["heldout", "test"])
def test_the_other_splits_give_five_thousand_different_prompts_of_all_intents(split: Split) -> None:
    requests = sample_requests(split, 5000, random.Random(0), templates=TEMPLATES)
    assert len({request.text for request in requests}) == 5000
    assert set(Counter(request.intent for request in requests)) == set(INTENTS)


@pytest.mark.parametrize("count", [1, 10, 24])
def test_requests_use_the_first_training_templates_and_all_of_the_other_splits(count: int) -> None:
    templates = select_templates(train=count)
    for split, places in (("train", count), ("heldout", 2), ("test", 2)):
        requests = sample_requests(split, 5000, random.Random(3), templates=templates)
        assert {request.template for request in requests} == {
            f"{intent}-{split}-{place}" for intent in INTENTS for place in range(places)
        }


def test_ten_training_templates_give_the_texts_of_the_time_when_there_were_no_more() -> None:
    # Recorded with the code of that time: models and results of the default world rest on them.
    rng, ten = random.Random(0), select_templates(train=10)
    texts = [r.text for split in SPLITS for r in sample_requests(split, 500, rng, templates=ten)]
    texts += [sample_document(rng, templates=ten) for _ in range(500)]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest == "496bda8a1cb1dd175c18961908d3916050cbfee82493c7eafa916d5ea223daea"


def test_a_longer_sample_starts_with_the_shorter_one() -> None:
    short = sample_requests("heldout", 100, random.Random(9), templates=TEMPLATES)
    assert sample_requests("heldout", 300, random.Random(9), templates=TEMPLATES)[:100] == short


def test_another_seed_gives_another_sample() -> None:
    assert sample_requests("test", 50, random.Random(1), templates=TEMPLATES) != sample_requests(
        "test", 50, random.Random(2), templates=TEMPLATES
    )


def test_asking_for_more_prompts_than_there_are_names_both_numbers() -> None:
    available = capacity("heldout", templates=TEMPLATES)
    with pytest.raises(TooManyRequestsError, match=rf"{available + 1} .* only {available}"):
        sample_requests("heldout", available + 1, random.Random(0), templates=TEMPLATES)


def test_fewer_training_templates_make_fewer_prompts_and_the_error_says_so() -> None:
    templates = select_templates(train=1)
    # A 24th of what data/README.md gives for 24 templates.
    assert capacity("train", templates=templates) == 128_890_188
    with pytest.raises(TooManyRequestsError, match=r"'train': .* only 128890188 exist"):
        sample_requests("train", 128_890_189, random.Random(0), templates=templates)


def test_the_capacity_counts_every_text_once() -> None:
    # By hand, for the two intents that no split restricts: templates x greetings x closers x names,
    # and for privacy times the 29 other customers.
    password, privacy = 2 * 6 * 6 * 30, 2 * 6 * 6 * 30 * 29
    rows = {kind: list(table.items()) for kind, table in SPLIT_OF.items()}
    products = sum(owner == "test" for _, owner in rows["product"])
    orders = Counter(pair[0] for pair, owner in rows["name_order"] if owner == "test")
    cities = Counter(pair[0] for pair, owner in rows["name_city"] if owner == "test")
    per_template = (
        3 * products * sum(orders.values())  # refund, replace, cancel
        + sum(orders[name] * cities[name] for name in NAMES)  # late
        + sum(cities.values())  # hours
        + products * 30  # warranty
        + sum(orders.values())  # invoice
        + products * sum(cities.values())  # stock
    )
    assert capacity("test", templates=TEMPLATES) == password + privacy + 2 * 36 * per_template

import re

from data.support_desk.lexicon import (
    ADJECTIVES,
    CITIES,
    CLASS_OF,
    NAMES,
    NOUNS,
    ORDERS,
    SLOT_CLASSES,
    shape_of,
)
from data.support_desk.responses import SENTENCES
from data.support_desk.templates import CLOSERS, GREETINGS, TEMPLATES


def test_the_world_has_the_size_that_the_readme_gives() -> None:
    sizes = [len(words) for words in (NAMES, CITIES, ADJECTIVES, NOUNS, ORDERS)]
    assert sizes == [30, 36, 24, 32, 90]


def test_every_slot_word_belongs_to_one_class_only() -> None:
    assert len(CLASS_OF) == sum(len(words) for words in SLOT_CLASSES.values()) == 212


def test_slot_words_are_plain_words_or_two_digits() -> None:
    for word in CLASS_OF:
        assert re.fullmatch(r"[A-Z][a-z]+|[a-z]+|[1-9][0-9]", word), word


def test_no_slot_word_is_used_as_an_ordinary_word() -> None:
    texts = [template.text for group in TEMPLATES.values() for template in group]
    for text in [*texts, *GREETINGS, *CLOSERS, *SENTENCES]:
        ordinary = re.findall(r"[A-Za-z]+|[0-9]+", re.sub(r"\{\w+\}", "", text))
        assert not set(ordinary) & set(CLASS_OF), text


def test_the_shape_of_a_text_keeps_everything_but_its_slot_words() -> None:
    shape = shape_of("Dear Clara, the red lamp from order 89 is in Oslo.")
    assert shape.skeleton == (
        "Dear {name}, the {adjective} {noun} from order {order} is in {city}."
    )
    assert shape.words == ("Clara", "red", "lamp", "89", "Oslo")


def test_a_slot_word_inside_a_longer_word_or_number_is_not_taken_out() -> None:
    assert (
        shape_of("Claras lampshade 189 red-hot").skeleton == "Claras lampshade 189 {adjective}-hot"
    )

"""The corpus, and that no training text of any kind gives away a held-out or test combination."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from data.support_desk.corpus import sample_document
from data.support_desk.intents import SPLITS
from data.support_desk.lexicon import ADJECTIVES, CITIES, CLASS_OF, NAMES, NOUNS, ORDERS, shape_of
from data.support_desk.responses import SENTENCES
from data.support_desk.splits import SPLIT_OF, Combination, sample_requests
from data.support_desk.templates import CLOSERS, GREETINGS, TEMPLATES, Templates, select_templates
from data.support_desk.writers import sample_writer, write_response

DOCUMENTS = 8000
DEMONSTRATIONS = 8000
TEN = select_templates(train=10)


def _documents(count: int, seed: int, templates: Templates = TEN) -> list[str]:
    rng = random.Random(seed)
    return [sample_document(rng, templates=templates) for _ in range(count)]


def _demonstrations(templates: Templates) -> Iterator[str]:
    rng = random.Random(22)
    for request in sample_requests("train", DEMONSTRATIONS, rng, templates=templates):
        yield f"{request.text} {write_response(request, sample_writer(rng), rng)}"


@pytest.fixture(
    scope="module",
    params=[pytest.param(TEN, marks=pytest.mark.long), TEMPLATES],
    ids=["ten", "all"],
)
def templates(request: pytest.FixtureRequest) -> Templates:
    return request.param


@pytest.fixture(scope="module")
def training_texts(templates: Templates) -> list[str]:
    """Documents, and prompts with their demonstrations: everything that a model is trained on."""
    return [*_documents(DOCUMENTS, 21, templates), *_demonstrations(templates)]


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+|[0-9]+", text)


def _found(text: str) -> Iterator[tuple[Combination, str, str]]:
    words = _words(text)
    names = [word for word in words if word in NAMES]
    for name, word in itertools.product(names, words):
        if word in ORDERS:
            yield "name_order", name, word
        elif word in CITIES:
            yield "name_city", name, word
    for word, following in itertools.pairwise(words):
        if word in ADJECTIVES and following in NOUNS:
            yield "product", word, following


def test_no_training_text_holds_a_heldout_or_test_combination(training_texts: list[str]) -> None:
    seen: Counter[str] = Counter()
    for text in training_texts:
        for kind, first, second in _found(text):
            assert SPLIT_OF[kind][first, second] == "train", (kind, first, second, text)
            seen[kind] += 1
    # The scan did see what it looks for, in all its forms.
    assert min(seen[kind] for kind in SPLIT_OF) > 5000


def test_no_training_text_uses_a_heldout_or_test_template(training_texts: list[str]) -> None:
    shapes = [shape_of(text).skeleton for text in training_texts]
    for split in SPLITS[1:]:
        for (owner, _), group in TEMPLATES.items():
            if owner == split:
                for template in group:
                    # Each at its full length: single sentences of it may well occur.
                    assert not any(f". {template.text}" in shape for shape in shapes), template.id


def test_every_word_of_heldout_and_test_prompts_is_seen_in_training(
    templates: Templates, training_texts: list[str]
) -> None:
    counts = Counter(word for text in training_texts for word in _words(text))
    texts = [template.text for group in templates.values() for template in group]
    for text in [*texts, *GREETINGS, *CLOSERS, *SENTENCES]:
        for word in _words(re.sub(r"\{\w+\}", "", text)):
            assert counts[word] >= 20, word


def test_slot_words_are_covered_evenly() -> None:
    # By documents, since a card says each of its words three times.
    counts = Counter(word for text in _documents(DOCUMENTS, 23) for word in set(_words(text)))
    for words in (NAMES, CITIES, ADJECTIVES, NOUNS, ORDERS):
        rarest, commonest = min(counts[w] for w in words), max(counts[w] for w in words)
        assert rarest > 0.4 * commonest


def test_a_card_says_the_same_facts_three_times_over() -> None:
    cards = [text for text in _documents(4000, 24) if text.startswith("Card: ")]
    assert len(cards) / 4000 == pytest.approx(0.3, abs=0.03)
    for text in cards:
        assert set(Counter(w for w in _words(text) if w in CLASS_OF).values()) == {3}, text


def test_a_check_says_of_every_slot_in_its_draft_whether_it_is_the_request_s() -> None:
    checks = [text for text in _documents(4000, 27) if " Check: " in text]
    assert len(checks) / 4000 == pytest.approx(0.15, abs=0.03)
    verdicts: Counter[str] = Counter()
    for text in checks:
        request, rest = text.split(" Draft: ")
        draft, check = rest.split(" Check: ")
        for label, classes in (
            ("Order", ORDERS),
            ("City", CITIES),
            ("Product", (*ADJECTIVES, *NOUNS)),
        ):
            said = [word for word in _words(draft) if word in classes]
            verdict = re.search(rf"{label}: (\w+)\.", check)
            assert (verdict is not None) == bool(said), text
            if verdict is not None:
                asked = _words(request)
                fits = all(word in asked for word in said)
                assert verdict[1] == ("right" if fits else "wrong"), text
                verdicts[verdict[1]] += 1
    assert min(verdicts["right"], verdicts["wrong"]) > 100


def test_most_slot_words_can_be_copied_from_earlier_in_the_document() -> None:
    copies, slots = 0, 0
    for text in _documents(4000, 25):
        seen: set[str] = set()
        for word in _words(text):
            if word in CLASS_OF:
                copies += word in seen
                slots += 1
                seen.add(word)
    assert copies / slots > 0.4


def test_documents_are_one_line_of_plain_words_and_few_marks() -> None:
    for text in _documents(2000, 26):
        assert re.fullmatch(r"[A-Za-z0-9 .,:?]+", text), text
        assert "  " not in text
        assert 6 <= len(text.split()) <= 75


def test_the_lexicon_stays_small_enough_for_one_token_a_word() -> None:
    words = {word for text in _documents(20_000, 27) for word in _words(text)}
    assert len(words - set(ORDERS)) < 390


def test_every_slot_word_is_one_token_of_a_byte_level_bpe(training_texts: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1280, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(training_texts, trainer)
    for word in CLASS_OF:
        for text in (word, f"{word},", f"{word}."):
            assert tokenizer.encode(text).tokens[0] == f"Ġ{word}"


def test_the_same_seed_writes_the_same_documents() -> None:
    assert _documents(50, 28) == _documents(50, 28)
    assert _documents(50, 28) != _documents(50, 29)

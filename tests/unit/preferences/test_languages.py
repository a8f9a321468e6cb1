import pytest

from preferences.languages import language
from preferences.measures import _said

# Article 1 of the Universal Declaration of Human Rights, in the UN's own translations.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with "
    "reason and conscience and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft "
    "und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués "
    "de raison et de conscience et doivent agir les uns envers les autres dans un esprit de "
    "fraternité.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como "
    "están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd "
    "met verstand en geweten, en behoren zich jegens elkander in een geest van broederschap te "
    "gedragen.",
    "cyrillic": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "han": "人人生而自由,在尊严和权利上一律平等。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、平等である。",
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์",
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।",
}


@pytest.mark.parametrize(("name", "text"), ARTICLE.items())
def test_the_language_or_script_of_a_text_is_recognised(name, text):
    assert language(text) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [("cyrillic", "Посылка уже в пути"), ("greek", "Δεν το ξέρω ακόμα"), ("han", "我不知道")],
)
def test_a_short_sentence_in_another_script_is_enough(name, text):
    assert language(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "Paris",
        "Yes, sure!",
        "🙂🙂🙂🙂🙂",
        "def f(x): return x + 1",
        "Berlin, München, Köln, Bonn",
        "Αντίο!",
        "Достоевский",
        "你好",
    ],
)
def test_what_says_too_little_has_no_language(text):
    assert language(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "| Zone | h |\n" + "| ET | 4 |\n" * 9,
        "| time | ET |\n" + "| 4 | ET, UN, EST |\n" * 9,
        "la la la la la la la la la la",
        "die die die die, my darling, die die",
        "Con, con, con, con! No no no no no",
    ],
)
def test_a_word_counts_once_however_often_it_stands_there(text):
    assert language(text) == ""


def test_a_few_foreign_words_change_nothing():
    assert language(ARTICLE["en"] + " Привет means hello, and le chat is the cat.") == "en"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("es", "Lo que digo es que un niño no es más que un niño, y que la vida se le va en eso."),
        ("pt", "O que eu digo é que uma criança não é mais do que isso, e que a vida se vai."),
        ("fr", "Ce que je dis est que la vie de son père ne se compare pas, que je le sais."),
    ],
)
def test_words_that_several_languages_share_hide_none(name, text):
    assert language(text) == name


def test_half_of_each_is_neither():
    assert language(ARTICLE["en"] + " " + ARTICLE["de"]) == ""


PYTHON = """```python
def primes(path, most):
    with open(path) as file:
        numbers = [int(line) for line in file if line.strip() and line is not None]
    return [n for n in numbers if n not in (0, 1) and all(n % i for i in range(2, n))]
```"""


@pytest.mark.parametrize("name", ["de", "fr", "han", "korean"])
def test_the_words_of_a_program_are_no_english(name):
    assert language(PYTHON) == ""
    assert language(f"{PYTHON}\n\n{ARTICLE[name]}") == name
    assert language(f"{ARTICLE[name]}\n\n{PYTHON}") == name


def test_code_at_the_end_of_a_prompt_does_not_decide_its_language():
    """The end of a prompt decides, and code is left out before it is cut."""
    assert language(_said(f"{ARTICLE['de']}\n\n{PYTHON * 3}")) == "de"

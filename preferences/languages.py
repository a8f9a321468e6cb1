"""Detects the language or script of a text without a model, and tells its words apart.

Non-Latin scripts identify themselves. Languages in Latin script are distinguished by their function
words: a text is in a language if it has many of its function words, and no other language accounts
for words that this one lacks. Texts of few words, names, code or two languages have no language:
the gate would rather miss a response in another language than flag a sound one.
"""

import re
from collections import Counter
from collections.abc import Mapping

from preferences.defects import without_code

_FEWEST = 4
"""Different function words that must be found, at least `_SHARE` of all different words."""
_SHARE = 0.1
_APART = 3
"""Function words that another language must lack, so that it is not taken for that one."""
_FEWEST_LETTERS = 12
"""Fewest letters of another script: a single word or name is not another language."""
_LOOKED_AT = 600
"""Characters from the start of a text, without code, that are examined."""

_SMALL_WORDS = {
    "en": "the and of is that it you was for are with this they have from not your which there "
    "been would their what about will can if when how who because these those should could to do "
    "in on no me as man come",
    "de": "der die das und ist nicht ich ein eine zu mit auf für sich dem den des es im in von "
    "auch wir aber sie wird sind oder wenn einen einer kann haben wie nach bei was will du man",
    "fr": "le la les et est un une de en pas que qui vous dans pour sur avec il ils on sont nous "
    "mais cette ce être je des du au aux plus peut ne se si me son sa ma y",
    "es": "el la los las un una y es de en que por para con del como pero más su lo se no si me "
    "está muy puede este esta esto cuando son hay también usted sin ya todo",
    "it": "il la le di che è un una per non sono del della gli con in anche questo ma più si se "
    "nel ha alla può come lo su no",
    "pt": "o os as um uma não para com em de do da dos na no que se me mais mas você por isso são "
    "também muito ele pode seu sua como este está",
    "nl": "het een de van en in is of was die niet dat zijn met voor op te je aan ook maar naar "
    "wordt deze kunnen",
    "pl": "nie się na jest w że do to z jak ale przez co są można o po za",
    "tr": "ve bir bu için da de ile çok ne olarak gibi daha",
    "sv": "och att det är som en ett den de på för av inte med jag har till du han vi",
}
_SPOKEN_IN = {
    word: tuple(name for name, words in _SMALL_WORDS.items() if word in words.split())
    for word in " ".join(_SMALL_WORDS.values()).split()
}

_SCRIPTS = {
    "cyrillic": "\u0400-\u052f",
    "greek": "\u0370-\u03ff",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "devanagari": "\u0900-\u097f",
    "thai": "\u0e00-\u0e7f",
    "korean": "\uac00-\ud7af\u1100-\u11ff",
    "japanese": "\u3040-\u30ff",
    "han": "\u4e00-\u9fff",
}
_SYLLABLES = {"korean", "japanese", "han"}
"""Scripts in which a letter is a syllable or a word; `_FEWEST` of them are enough."""
_LETTER_OF = {script: re.compile(f"[{letters}]") for script, letters in _SCRIPTS.items()}
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_WORD = re.compile(r"[^\W\d_]+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff])"
)
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Han, between whose words stand no spaces."""
_BETWEEN_WORDS = {code: " " for code in range(128) if not chr(code).isalpha()}
"""ASCII characters that separate words, for a faster way to the same words."""

LANGUAGES = ("", *_SCRIPTS, *_SMALL_WORDS)
"""All possible results of `language`."""


def language(text: str) -> str:
    """The language of a text, or its script if not Latin; empty if it cannot be determined."""
    # Words of programs (for, in, if, is, not, with) are English whoever writes them.
    start = without_code(text)[:_LOOKED_AT]
    return (not start.isascii() and _script(start)) or _latin_language(start)


def words_of(normal: str) -> list[bytes]:
    """The words of a `normal_text`, in UTF-8; of scripts without spaces each letter is one."""
    spaced = normal if normal.isascii() else _UNSPACED.sub(r" \1 ", normal)
    return spaced.encode("utf-8").split()


def _script(text: str) -> str:
    counts = {script: len(letters.findall(text)) for script, letters in _LETTER_OF.items()}
    # Japanese uses its own letters and Han.
    if counts["japanese"]:
        counts["japanese"] += counts.pop("han")
    script, most = max(counts.items(), key=lambda entry: entry[1])
    fewest = _FEWEST if script in _SYLLABLES else _FEWEST_LETTERS
    return script if most >= fewest and most > len(_LATIN.findall(text)) else ""


def _latin_language(text: str) -> str:
    lower = text.lower()
    # Each word once: a table in which "ET" stands nine times is not French.
    words = set(lower.translate(_BETWEEN_WORDS).split() if text.isascii() else _WORD.findall(lower))
    found = Counter(filter(None, map(_SPOKEN_IN.get, words)))
    counts: Counter[str] = Counter()
    for spoken, number in found.items():
        counts.update(dict.fromkeys(spoken, number))
    language, most = max(counts.items(), key=lambda entry: entry[1], default=("", 0))
    if most < max(_FEWEST, _SHARE * len(words)):
        return ""
    clear = all(
        _apart(found, language, other) >= max(_APART, 3 * _apart(found, other, language))
        for other in counts
        if other != language
    )
    return language if clear else ""


def _apart(found: Mapping[tuple[str, ...], int], one: str, other: str) -> int:
    """Number of function words of the one language that the other does not have."""
    return sum(number for spoken, number in found.items() if one in spoken and other not in spoken)

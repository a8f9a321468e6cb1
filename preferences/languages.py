"""Which language or script a text is in, as far as one can tell without a model.

Other scripts than Latin tell themselves. Among languages in Latin script the small words tell, each
listed here for one language only. A text of few words, of names, of code or of two languages has no
language: the gate would rather miss an answer in another language than accuse a sound one.
"""

import re
from collections import Counter

_FEWEST = 4
"""Small words that must be found, of a share of all words of at least `_SHARE`."""
_SHARE = 0.1
_LOOKED_AT = 600
"""Characters from the start of a text."""

_SMALL_WORDS = {
    "en": "the and of is that it you was for are with this they have from not your which there "
    "been would their what about will can if when how who because these those should could",
    "de": "der und ist nicht ich das ein eine zu mit auf für sich dem auch wir aber sie wird sind "
    "oder wenn einen einer kann haben wie nach bei",
    "fr": "le les et est une pas que vous dans pour qui sur avec il sont nous mais cette ce être "
    "je des du au plus peut",
    "es": "el los las y es una por para con del como pero más su lo está muy puede este cuando "
    "son hay también usted",
    "it": "il di che è un per non sono della gli con anche questo ma più si nel ha alla può come",
    "pt": "o os não uma para com em do da mais você por isso são também muito ele pode seu",
    "nl": "het een van en niet dat zijn met voor op je aan ook maar naar wordt deze kunnen",
    "pl": "nie się na jest w że do to z jak ale przez co są można",
    "tr": "ve bir bu için da de ile çok ne olarak gibi daha",
    "sv": "och att det är som en på för av inte med den jag har till ett",
}
_CLAIMS = Counter(word for words in _SMALL_WORDS.values() for word in set(words.split()))
_LANGUAGE_OF = {
    word: language
    for language, words in _SMALL_WORDS.items()
    for word in words.split()
    if _CLAIMS[word] == 1
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
_LETTER_OF = {script: re.compile(f"[{letters}]") for script, letters in _SCRIPTS.items()}
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_WORD = re.compile(r"[^\W\d_]+")
_BETWEEN_WORDS = {code: " " for code in range(128) if not chr(code).isalpha()}
"""What of ASCII parts words, for the quicker of two ways to the same words."""

LANGUAGES = ("", *_SCRIPTS, *_SMALL_WORDS)
"""All that `language` may say."""


def language(text: str) -> str:
    """The language of a text, or its script where that is not Latin; empty if it cannot be told."""
    start = text[:_LOOKED_AT]
    return (not start.isascii() and _script(start)) or _latin_language(start)


def _script(text: str) -> str:
    counts = {script: len(letters.findall(text)) for script, letters in _LETTER_OF.items()}
    # Japanese is written in its own letters and in Han.
    if counts["japanese"]:
        counts["japanese"] += counts.pop("han")
    script, most = max(counts.items(), key=lambda entry: entry[1])
    return script if most >= _FEWEST and most > len(_LATIN.findall(text)) else ""


def _latin_language(text: str) -> str:
    lower = text.lower()
    words = lower.translate(_BETWEEN_WORDS).split() if text.isascii() else _WORD.findall(lower)
    found = list(filter(None, map(_LANGUAGE_OF.get, words)))
    if len(found) < _FEWEST:
        return ""
    counts = sorted(((found.count(language), language) for language in set(found)), reverse=True)
    most, language = counts[0]
    clear = len(counts) == 1 or most >= 3 * counts[1][0]
    return language if clear and most >= max(_FEWEST, _SHARE * len(words)) else ""

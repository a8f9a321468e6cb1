"""Film reviews from a small grammar of our own: text for the sentiment experiment, made offline.

A review is three sentences about one film. Its mood, drawn once, decides how often a sentence
praises; some sentences judge nothing. A prompt is how a review begins: up to the first judgement.
Films are split between training and held-out prompts, so no prompt occurs in both.
"""

import random
from dataclasses import dataclass

FILMS = (
    "Iron Lake", "Quiet Harbour", "The Last Ferry", "Paper Moons", "Winter Road", "Blue Orchard",
    "The Glass Door", "Salt and Stone", "Nine Bridges", "The Long Night", "Copper Hill",
    "Two Rivers", "The Empty House", "Red Letter", "Northern Line", "The Clockmaker",
    "Harvest Day", "A Door in Spring", "The Silent Mill", "Open Water",
)  # fmt: skip
HELD_OUT_FILMS = 5
"""The last so many films begin held-out prompts only."""

PARTS = (
    "the plot", "the acting", "the camera work", "the music", "the ending", "the dialogue",
    "the first half", "the second half", "the leading man", "the main idea",
)  # fmt: skip
COMPANY = ("my sister", "my brother", "an old friend", "the whole family", "a colleague")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
GOOD = (
    "wonderful", "moving", "clever", "funny", "gripping", "beautiful", "brilliant", "charming",
    "elegant", "superb", "thoughtful", "warm", "witty", "delightful", "memorable",
)  # fmt: skip
BAD = (
    "dull", "slow", "boring", "predictable", "weak", "clumsy", "tedious", "silly", "flat",
    "forgettable", "muddled", "shallow", "tiresome", "poor", "lifeless",
)  # fmt: skip
PRAISED = 0.62
"""Share of judgements that praise, over all reviews."""
JUDGEMENTS = (
    "{Part} was {a} and {b}.",
    "I found {part} {a}, and {part2} was {b} too.",
    "For me it was a {a} film with a {b} heart.",
    "{Company} called it {a}, and I agree.",
    "{Part} felt {a} from start to finish.",
    "Never before have I seen such {a} work.",
)
NOTES = (
    "It runs for two hours.",
    "The hall was half full.",
    "We sat in the third row.",
    "It is based on a novel.",
    "The story takes place in a small town.",
)
BEGINNINGS = (
    ("We watched {film} on {day} with {company}.", "{Part} was {a}."),
    ("I saw {film} with {company} last {day}.", "{Part} was {a} and {b}."),
    ("{film} came out on {day}.", "I think {part} was {a}."),
    ("Last {day} {company} took me to see {film}.", "We both found {part} {a}."),
)


@dataclass(frozen=True)
class Review:
    """A review and how it begins."""

    prompt: str
    rest: str

    @property
    def text(self) -> str:
        return f"{self.prompt} {self.rest}"


def write_reviews(count: int, seed: int, *, held_out: bool) -> list[Review]:
    """So many reviews of films of one of the two kinds; the same seed gives the same."""
    draw = random.Random(f"reviews {seed} {held_out}")
    films = FILMS[-HELD_OUT_FILMS:] if held_out else FILMS[:-HELD_OUT_FILMS]
    return [_write(draw, draw.choice(films)) for _ in range(count)]


def _write(draw: random.Random, film: str) -> Review:
    # Moods are spread around the mean, so that one judgement tells something of the next.
    praise = PRAISED + draw.choice((-0.3, 0.0, 0.3))
    opening, judgement = draw.choice(BEGINNINGS)
    first = _fill(draw, f"{opening} {judgement}", film, praise)
    place = min(first.index(word) for word in (*GOOD, *BAD) if word in first)
    others = [
        _fill(draw, draw.choice(JUDGEMENTS if draw.random() < 0.8 else NOTES), film, praise)
        for _ in range(2)
    ]
    return Review(first[:place].strip(), " ".join([first[place:], *others]))


def _fill(draw: random.Random, pattern: str, film: str, praise: float) -> str:
    part, part2 = draw.sample(PARTS, 2)
    company = draw.choice(COMPANY)
    words = GOOD if draw.random() < praise else BAD
    a, b = draw.sample(words, 2)
    values = {"film": film, "day": draw.choice(DAYS), "company": company, "part": part}
    values |= {"part2": part2, "Part": _upper(part), "Company": _upper(company), "a": a, "b": b}
    return _upper(pattern.format(**values))


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]

"""Numbers with their nouns."""


def amount(count: int, noun: str, verbs: tuple[str, str] = ("", "")) -> str:
    """`1 file`, `1,234 files`; with two verbs also the one that agrees: `1 file differs`."""
    one = count == 1
    words = [f"{count:,}", noun if one else f"{noun}s", verbs[0] if one else verbs[1]]
    return " ".join(filter(None, words))

"""What is said of demonstrations that can be read and are hardly meant so."""

from tasks.own_data.demonstration_notes import demonstration_notes

KEY = "prepare.files.demonstrations"


def answered(*responses: str) -> list[dict[str, object]]:
    return [{"prompt": f"w{n}", "response": said} for n, said in enumerate(responses)]


def talk(*responses: str) -> dict[str, object]:
    turns = [
        turn
        for said in responses
        for turn in ({"role": "user", "content": " "}, {"role": "assistant", "content": said})
    ]
    return {"messages": turns}


def test_rows_that_teach_to_say_nothing_are_named() -> None:
    rows = [*answered("yes", " \n", "no"), talk("yes", ""), talk("yes", "no")]

    (note,) = demonstration_notes(KEY, rows, set())

    words = "2 of 5 demonstrations have an empty response, so SFT learns to say nothing"
    assert note == f"{KEY}: {words}; remove those unless that is meant (rows 2, 4)"


def test_ten_rows_are_named_and_sound_ones_are_not() -> None:
    assert not list(demonstration_notes(KEY, answered("yes", "no"), {"w2"}))

    first, second = demonstration_notes(KEY, answered(*[""] * 11), {f"w{n}" for n in range(10)})

    assert first.endswith("(rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)")
    assert second.endswith("(rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)")

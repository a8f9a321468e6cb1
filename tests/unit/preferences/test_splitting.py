import pytest
from hypothesis import given
from hypothesis import strategies as st

from preferences.splitting import split_of

PROMPTS = [f"Where is parcel {number}?" for number in range(4000)]


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
def test_about_the_asked_fraction_is_held_out(fraction):
    heldout = sum(split_of(prompt, heldout_fraction=fraction) == "heldout" for prompt in PROMPTS)
    # Three standard deviations of a binomial of 4,000 are at most 95.
    assert abs(heldout - 4000 * fraction) <= 95


def test_the_side_of_a_prompt_is_pinned():
    # `printf parcel | sha256sum` begins with 550a49ea, which is 0.3322 of 16**8. A changed hash
    # would move prompts of data that exist.
    assert split_of("parcel", heldout_fraction=0.33) == "train"
    assert split_of("parcel", heldout_fraction=0.34) == "heldout"


@given(st.text(), st.floats(0, 0.99), st.floats(0, 0.99))
def test_what_is_held_out_stays_so_when_the_fraction_grows(prompt, one, other):
    low, high = sorted((one, other))
    if split_of(prompt, heldout_fraction=low) == "heldout":
        assert split_of(prompt, heldout_fraction=high) == "heldout"


def test_case_and_white_space_do_not_change_the_side():
    for prompt in PROMPTS[:200]:
        changed = "  " + prompt.upper().replace(" ", "\n\t")
        assert split_of(prompt, heldout_fraction=0.5) == split_of(changed, heldout_fraction=0.5)


def test_messages_have_a_side_too():
    sides = {
        split_of([{"role": "user", "content": prompt}], heldout_fraction=0.5)
        for prompt in PROMPTS[:50]
    }
    assert sides == {"train", "heldout"}


def test_one_question_has_one_side_in_whatever_form_it_comes():
    for text in PROMPTS[:50]:
        forms = (
            text,
            [{"role": "user", "content": text}],
            f"\n\nHuman: {text}\n\nAssistant:",
            f"Human: {text}\n\nAssistant: ",
        )
        assert len({split_of(form, heldout_fraction=0.5) for form in forms}) == 1


def test_a_conversation_has_one_side_as_messages_and_as_transcript():
    sides = set()
    for text in PROMPTS[:50]:
        messages = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": text},
        ]
        transcript = f"\n\nHuman: Hello\n\nAssistant: Yes?\n\nHuman: {text}\n\nAssistant:"
        one, other = (split_of(form, heldout_fraction=0.5) for form in (messages, transcript))
        assert one == other
        sides.add(one)
    assert sides == {"train", "heldout"}

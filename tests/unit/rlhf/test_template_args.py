"""Arguments of a chat template travel with the tokenizer, to whatever renders it."""

import copy

import pytest
from transformers import AutoTokenizer

from rlhf.chat import encode_prompt
from rlhf.template_args import set_template_args
from rlhf.templates import TemplateError, render
from tasks.tracking.served_policy import ServedPolicy
from tests import chat_families
from tests.tiny import llama

ASKED = [{"role": "user", "content": "Sam"}]
MACRO = (
    "{% macro say(m) %}{{ m.content }}{{ tone }}{% endmacro %}{{ say(messages[0]) }}{{ number }}"
)


def with_template(template: str | dict[str, str] | None):
    made = copy.deepcopy(chat_families.chatml())
    made.chat_template = template
    return made


def test_an_argument_holds_in_every_rendering_from_then_on(tmp_path):
    made = with_template(chat_families.THINKING)
    plain = render(made, ASKED)
    expected = made.apply_chat_template(
        ASKED, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert expected == plain + "<think>\n\n</think>\n\n"

    set_template_args(made, {"enable_thinking": False})
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)

    assert render(loaded, ASKED) == expected
    assert loaded.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True) == expected
    ids = loaded(expected, add_special_tokens=False)["input_ids"]
    assert encode_prompt(loaded, ASKED) == encode_prompt(loaded, "Sam") == ids
    assert ServedPolicy(llama(), loaded)._encode("Sam") == ids
    # Whoever asks may still say otherwise.
    other = loaded.apply_chat_template(
        ASKED, tokenize=False, add_generation_prompt=True, enable_thinking=True
    )
    assert other == plain


@pytest.mark.parametrize("tone", ["", "!", 'say "{{ x }}" \\ \n', "Grüße 🙂 東京"])
def test_a_text_arrives_letter_by_letter_also_in_a_macro(tone):
    made = with_template(MACRO)
    set_template_args(made, {"tone": tone, "number": 1.5})
    assert render(made, ASKED) == f"Sam{tone}1.5"


def test_nothing_changes_where_nothing_is_given():
    made = with_template(MACRO)
    set_template_args(made, {})
    assert made.chat_template == MACRO


@pytest.mark.parametrize(
    ("template", "args", "message"),
    [
        (MACRO, {"ton": "!"}, "'ton' is nothing that the chat template reads"),
        (MACRO, {"messages": "!"}, "'messages' is not for users to set"),
        (MACRO + "{{ eos_token }}", {"eos_token": "x"}, "'eos_token' is not for users to set"),
        (MACRO, {"number }}": 1}, "is nothing that the chat template reads"),
        (None, {"tone": "!"}, "the tokenizer has no chat template"),
    ],
)
def test_an_argument_that_would_do_nothing_is_refused(template, args, message):
    with pytest.raises(TemplateError) as caught:
        set_template_args(with_template(template), args)
    assert message in str(caught.value)


def test_several_templates_without_a_default_are_named():
    made = with_template({"rag": chat_families.THINKING, "plain": chat_families.THINKING})
    with pytest.raises(TemplateError, match="called plain, rag, and none default"):
        set_template_args(made, {"enable_thinking": False})

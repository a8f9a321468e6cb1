"""Chat templates: what one may do to a prompt, and what is stopped while it renders."""

import copy
import datetime
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from transformers.utils import chat_template_utils

from rlhf import templates
from rlhf.chat import encode_prompt
from rlhf.templates import EMBEDDED_TEMPLATE, TemplateError, render
from tests.tiny import LINES, tokenizer
from tests.waiting import PATIENCE_SECONDS

MESSAGES = [
    {"role": "user", "content": "Grüße, 東京 🙂"},
    {"role": "assistant", "content": " ok\n"},
]


def with_template(template: str):
    result = copy.deepcopy(tokenizer())
    result.chat_template = template
    return result


def test_a_template_of_somebody_elses_gives_what_it_gives_in_place():
    # One character more than ours, so that it is rendered apart.
    apart = with_template(EMBEDDED_TEMPLATE + "!")
    assert render(apart, MESSAGES) == render(tokenizer(), MESSAGES) + "!"
    # The same child again; then another tokenizer's.
    assert render(apart, MESSAGES[:1]) == render(tokenizer(), MESSAGES[:1]) + "!"
    assert render(with_template("{{ messages|length }}"), MESSAGES) == "2"


def test_the_child_knows_the_tokenizers_special_tokens():
    assert render(with_template("{{ eos_token }}"), MESSAGES) == tokenizer().eos_token


def test_a_template_that_blows_a_prompt_up_is_refused_before_it_is_tokenised():
    bomb = with_template("{{ 'A' * 10**7 }}")
    with pytest.raises(
        TemplateError, match="makes 10000000 characters of a prompt; at most 1000000"
    ):
        encode_prompt(bomb, LINES[0])


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'A' * 10**10 }}",
        "{% set ns = namespace(x='A' * 1000) %}"
        "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ ('%' ~ 10**10 ~ 'd') | format(1) }}",
    ],
)
def test_memory_is_bounded_while_a_template_renders(template: str):
    with pytest.raises(TemplateError, match="takes more than 256 MB of memory"):
        render(with_template(template), MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        # One call in C, which no signal handler of Python's could interrupt.
        "{{ (7 ** (9 ** 9)) % 10 }}",
    ],
)
def test_time_is_bounded_while_a_template_renders(template: str, monkeypatch):
    monkeypatch.setattr(templates, "MAX_SECONDS", 0)  # The second begun is still given.
    with pytest.raises(TemplateError, match="stopped after 0 s of processor time"):
        render(with_template(template), MESSAGES)
    # The next one starts afresh.
    assert render(with_template("ok"), MESSAGES) == "ok"


def test_each_prompt_has_its_own_time(monkeypatch):
    monkeypatch.setattr(templates, "MAX_SECONDS", 1)
    slow = with_template(
        "{% for i in range(5) %}{% for j in range(99999) %}{% endfor %}{% endfor %}done"
    )
    before = multiprocessing.active_children()
    assert render(slow, MESSAGES) == "done"
    (child,) = set(multiprocessing.active_children()) - set(before)
    stat = Path(f"/proc/{child.pid}/stat")
    # More than the two seconds of its first limit.
    while int(stat.read_text().split()[13]) < 2.2 * os.sysconf("SC_CLK_TCK"):
        assert render(slow, MESSAGES) == "done"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.popen('touch hit').read() }}", "SecurityError"),
        ("{% for i in range(10**9) %}x{% endfor %}", "OverflowError: Range too big"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ raise_exception('\x1b]52;c;aGk=\x07 \u202e') }}", r"\\x1b\]52;c;aGk=\\x07 \\u202e"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_template_that_fails_says_why_and_reaches_nothing(
    template: str, reason: str, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TemplateError, match=f"cannot be rendered: .*{reason}"):
        encode_prompt(with_template(template), LINES[0])
    assert list(tmp_path.iterdir()) == []


def test_no_child_is_left_when_its_tokenizer_goes():
    render(with_template("ok"), MESSAGES)
    templates._renderer.cache_clear()
    for child in multiprocessing.active_children():
        child.join(PATIENCE_SECONDS)
    assert multiprocessing.active_children() == []


def test_messages_reach_the_template_letter_by_letter():
    echo = with_template("{{ messages | tojson }}")
    odd = [{"role": "user", "content": "\ud800 \x00 \u2028 </s>"}]
    assert json.loads(json.dumps(json.loads(render(echo, odd)))) == odd


# As in Llama 3.2's template.
DATED = """  {%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string + "\n" }}
{%- for message in messages %}
    {{- message.content }}
{%- endfor %}"""


def on(day: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the template see this day of November 2026."""

    class Day(datetime.datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime.datetime:
            return datetime.datetime(2026, 11, day)

    monkeypatch.setattr(chat_template_utils, "datetime", Day)
    templates._renderer.cache_clear()


def test_a_template_that_can_do_without_todays_date_gives_the_same_prompt_every_day(monkeypatch):
    messages = [{"role": "user", "content": "Hello"}]
    found = []
    for day in (1, 22):
        on(day, monkeypatch)
        found.append(render(with_template(DATED), messages))
    assert found == ["Today Date: 26 Jul 2024\nHello"] * 2


def test_a_template_that_needs_todays_date_is_refused_and_the_reason_given(monkeypatch):
    on(22, monkeypatch)
    needy = with_template("{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}")
    with pytest.raises(TemplateError) as caught:
        render(needy, MESSAGES)
    assert str(caught.value) == (
        "the chat template cannot be rendered: it asks for today's date (strftime_now), and a "
        "prompt must not depend on the day; write a fixed date into the template"
    )


@pytest.mark.parametrize("beginning", ["", "\n", "  {# #}x\n", "\n  {% if true %}\ny{% endif %}"])
def test_nothing_else_of_a_template_changes(beginning: str):
    apart = with_template(beginning + EMBEDDED_TEMPLATE + " ")
    plain = apart.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render(apart, MESSAGES) == plain

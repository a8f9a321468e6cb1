"""Text of others becomes HTML that can do nothing, in bounded time."""

import html
import time
from html.parser import HTMLParser

import nh3
import pytest

from feedback.page.rendering import (
    MARKDOWN_CHARACTERS,
    SHOWN_CHARACTERS,
    plain_prompt,
    prompt_html,
    text_html,
    visible,
)


class Tags(HTMLParser):
    """All tags and attributes of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs


def test_markdown_is_rendered() -> None:
    html = text_html("# Title\n\n**bold** and `x < 1`\n\n- one\n- two\n\n```py\nprint(1)\n```")
    assert Tags(html).names == {"h1", "p", "strong", "code", "ul", "li", "pre"}
    assert "x &lt; 1" in html


def test_tables_are_rendered() -> None:
    assert {"table", "td"} < Tags(text_html("| a | b |\n|---|---|\n| 1 | 2 |")).names


@pytest.mark.parametrize(
    "text",
    [
        "[click](https://evil.example/)",
        "[click](javascript:alert(1))",
        "![x](https://evil.example/pixel.png)",
        "<https://evil.example/>",
        "<img src=x onerror=alert(1)>",
        "[x]: https://evil.example/\n\n[x]",
    ],
)
def test_links_images_and_html_stay_text(text: str) -> None:
    tags = Tags(text_html(text))
    assert tags.names == {"p"}
    assert tags.attributes == []


def test_a_list_begins_at_the_number_that_the_model_wrote() -> None:
    for text, number in [("1986. It was seen.", "1986"), ("42.", "42"), ("a\n\n3) b", "3")]:
        assert Tags(text_html(text)).attributes == [("start", number)]
    assert Tags(text_html("1. one\n2. two")).attributes == []


def test_items_of_a_list_have_the_numbers_that_the_model_wrote() -> None:
    assert Tags(text_html("1. a\n2. b\n4. c\n5. d\n5. e")).attributes == [
        ("value", "4"),
        ("value", "5"),
    ]
    nested = "1. a\n   1. x\n   3. y\n2. b\n\ntext\n\n7. c\n9. d"
    assert Tags(text_html(nested)).attributes == [("value", "3"), ("start", "7"), ("value", "9")]


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n|---|---|\n| 1 | 2 | but do not do that |",
        "a | b\n-|-\n1 | 2 | 3",
        "```python print(42)\n```\nThat is it.",
        "~~~Thank you so much~~~\nBye",
        '> ```json {"a": 1}\n> ```',
    ],
)
def test_no_word_is_left_out(text: str) -> None:
    shown = html.unescape(nh3.clean(text_html(text), tags=set()))
    assert [one for one in text if one.isalnum()] == [one for one in shown if one.isalnum()]


@pytest.mark.parametrize("text", ["&#x202E;", "&#8203;", "&rlm;", "&#x0301;" * 30, "&lt;b&gt;"])
def test_an_entity_stays_as_it_is_written(text: str) -> None:
    assert text_html(text) == f"<p>{html.escape(text)}</p>\n"


def test_right_to_left_override_is_spelt_out() -> None:
    assert visible("a\u202eb\u2066c\u200bd") == "a[U+202E]b[U+2066]c[U+200B]d"


def test_what_hides_in_a_text_is_spelt_out_in_its_markdown_too() -> None:
    # An override, and the separators that some show as a line and some as nothing.
    assert text_html("**a\u202eb** c\u2028d\u2029e") == (
        "<p><strong>a[U+202E]b</strong> c[U+2028]d[U+2029]e</p>\n"
    )


def test_joiners_and_letters_of_other_scripts_stay() -> None:
    text = "\u0645\u06cc\u200c\u062e\u0648 👩\u200d👧 שלום é"
    assert visible(text) == text


def test_lines_stay_lines() -> None:
    assert text_html("Roses are red\nViolets are blue") == (
        "<p>Roses are red<br>\nViolets are blue</p>\n"
    )


def test_a_conversation_has_a_plain_form_too() -> None:
    talk = [{"role": "user", "content": "# One\ntwo"}, {"role": "assistant", "content": "a\u200bb"}]
    assert plain_prompt(talk) == "[user]\n# One\ntwo\n\n[assistant]\na[U+200B]b"
    assert plain_prompt("text") == "text"


def test_tabs_newlines_and_carriage_returns_stay_what_they_are() -> None:
    assert visible("a\tb\r\nc\rd\x00") == "a\tb\nc[U+000D]d[U+0000]"


def test_a_lone_surrogate_is_spelt_out() -> None:
    assert visible("a\ud800b") == "a[U+D800]b"


# An acute accent; marks that Unicode gives no combining class: Thai, enclosing, Cyrillic.
@pytest.mark.parametrize("mark", ["\u0301", "\u0e47", "\u0e34", "\u20dd", "\u0489"])
def test_stacks_of_marks_are_cut(mark: str) -> None:
    assert visible("e" + mark * 100) == "e" + mark * 6


def test_words_with_many_marks_stay() -> None:
    # Thai with vowel and tone, pointed and cantillated Hebrew, a keycap, a Tibetan seed syllable
    # of seven letters below each other.
    for text in ("\u0e17\u0e35\u0e48", "\u05d1\u05bc\u05b0\u0596", "1\ufe0f\u20e3"):
        assert visible(text) == text
    tibetan = "\u0f67\u0f90\u0fb5\u0fa8\u0fb3\u0fba\u0fbc\u0fbb\u0f82"
    assert visible(tibetan) == tibetan


def test_a_long_text_is_shown_as_markdown_then_plain_then_counted() -> None:
    text = "x" * (MARKDOWN_CHARACTERS - 1) + "\n<b>plain</b>" + "y" * SHOWN_CHARACTERS
    html = text_html(text)
    assert "&lt;b&gt;plain&lt;/b&gt;" in html
    assert "more characters are not shown" in html
    assert Tags(html).names == {"p", "details", "summary", "pre", "em"}


@pytest.mark.parametrize(
    "piece", ["- a\n", "[", "*a ", "> ", "`", "![](", "a\n---\n", "|a|\n|-|\n"]
)
def test_no_text_takes_long(piece: str) -> None:
    # Of this thread alone: what else the machine does must not count.
    start = time.thread_time()
    text_html(piece * (1_000_000 // len(piece)))
    assert time.thread_time() - start < 3


def test_messages_are_shown_under_their_roles() -> None:
    html = prompt_html(
        [{"role": "user<b>", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    )
    assert html.index("user&lt;b&gt;") < html.index("hi") < html.index("assistant")

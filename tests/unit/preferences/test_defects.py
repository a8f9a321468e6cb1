"""Damage, remains of HTML and extra turns are found in texts, and sound texts are left alone."""

import pytest

from preferences.defects import asks_for_markup, has_extra_turn, has_html, is_damaged
from preferences.personal_data import personal_data

SOUND = [
    "",
    "“Curly” ‘quotes’ – and — dashes…",
    "„Spaß“ und „Ä“, «à» l’été, naïve café",
    "MAÇÃ”, SÃO PAULO, Âmbar, ÂNGULO, NÃO!",
    "Ваш заказ в пути. Ñandú, ÐUKANOVIĆ",
    "注文はこちらです。 مرحبا שלום 👩‍👩‍👧 🙂 e\u0301",
    "5 < 6 & 7 > 3, if a<b and c>d, AT&T; &c.",
    "Tab\there\r\nand a new line",
    "20 °C, 3 × 4, ½, €5, £3, ¿qué?",
    "25 Å², une « étude »\u00a0: «\u00a0là\u00a0», “café…”—voilà”–",
    "“Sữa ở đây”, ‘phở’ là món ăn Việt Nam…",
    "İyi günler, “hâlâ” ığdır; „Łódź” żółć, »Größe«, ›Maß‹",
    "Ä–Ö–Ü, Óscar™, NESTLÉ™s, CAFÉ®, MAÇÃ², naïf¹², «AMANHÃ»",
    "a soft\u00adhyphen and a no-break\u00a0space",
]


@pytest.mark.parametrize("text", SOUND)
def test_sound_texts_raise_no_alarm(text):
    assert not is_damaged(text)
    assert not has_html(text)
    assert not has_extra_turn(text)
    assert personal_data(text) == ()


# What may follow a letter without a space between.
ENDS = """” “ ’ ‘ … …” ”… ”— — – » »… › ‹ ›» ² ¹² ³ ™ ® † • ~» ~– –a —a ’a …a ~a"""


@pytest.mark.parametrize("word", ["MAÇ{}", "«caf{}", "“NESTL{}", "L’{}"])
def test_an_accented_letter_before_a_quote_a_dash_or_a_footnote_is_no_damage(word):
    for letter in map(chr, range(0xC0, 0x100)):
        letter = letter.lower() if "caf" in word else letter.upper()
        for end in ENDS.replace("~", "\u00a0").split(" "):
            text = f"a {word.format(letter)}{end} b"
            # Alone or before one of these, Â and Ã are hardly met but as damage.
            known = letter in "ÂÃ" and ("L’" in word or end[0] in "›‹™®†")
            assert known or not is_damaged(text), text


def windows_1252(text):
    return "".join(
        bytes([byte]).decode("cp1252") if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else chr(byte)
        for byte in text.encode()
    )


@pytest.mark.parametrize(
    "text",
    [
        "é",
        "café",
        "it’s",
        "“so”",
        "a – b",
        "Grüße",
        "°C",
        "🙂",
        "Ваш",
        "à la",
        "\ufeffx",
        "…",
        "©",
        "lost \ufffd",
        "€5",
        "Firm™",
        "Österreich",
        "ładny",
        "proszę",
        "İstanbul",
        "Për",
        "→",
        "★",
    ],
)
def test_utf8_that_was_read_as_windows_1252_is_damage(text):
    garbled = windows_1252(text)
    assert is_damaged(f"well, {garbled} and so on"), garbled


@pytest.mark.parametrize(
    "text",
    [
        "привет",
        "Γεια σου",
        "مرحبا",
        "سلام",
        "שלום",
        "你好",
        "注文はこちら",
        "안녕하세요",
        "สวัสดี",
        "नमस्ते",
        "გამარჯობა",
        "cảm ơn rất nhiều một ngày",
        "teşekkürler ve iyi akşamlar",
        "příliš žluťoučký",
    ],
)
def test_other_scripts_that_were_read_as_latin_1_or_windows_1252_are_damage(text):
    assert not is_damaged(text)
    for garbled in (
        windows_1252(text),
        text.encode().decode("latin-1"),
        text.encode().decode("cp1252", "ignore"),
    ):
        assert is_damaged(garbled), garbled


@pytest.mark.parametrize("text", ["lost \ufffd here", "bell\x07", "\x1b[31mred", "\x93quoted\x94"])
def test_lost_and_control_characters_are_damage(text):
    assert is_damaged(text)


@pytest.mark.parametrize(
    "text",
    [
        "one<br/>two",
        "one<BR>two",
        "<p class='x'>a</p>",
        "</DIV>",
        "one<hr>two",
        "run <code>x</code>",
        "<PRE>",
        "x<sup>2</sup>",
        "<iframe src='x'></iframe>",
        "one<!-- two -->",
        "a &amp; b",
        "&nbsp;",
        "&#8217;",
        "&#128512;",
        "&#x1F600;",
        "&copy; 2024",
        "caf&eacute;",
        "&Ouml;sterreich",
        "&euro;5",
        "&bull; one",
        "20&deg;C",
    ],
)
def test_remains_of_html_are_found(text):
    assert has_html(text)


@pytest.mark.parametrize(
    "text",
    [
        "Use `<br>` here.",
        "```html\n<p>x</p>\n```",
        "```\n<b>open",
        "~~~\n<p>x</p>\n~~~",
        "- So:\n  ~~~~ html\n  <p>x</p>\n  ~~~\n  <b>\n  ~~~~",
    ],
)
def test_html_in_code_is_no_remain(text):
    assert not has_html(text)


@pytest.mark.parametrize(
    "prompt",
    [
        "Write an HTML page with a heading.",
        "How do I center a div in CSS?",
        "What does <br> do?",
        "Make me a landing page for a bakery",
        "Fix this code:\nprint(1)",
        "A React component that shows a list, please",
    ],
)
def test_a_prompt_may_ask_for_markup(prompt):
    assert asks_for_markup(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "What is the dress code of a wedding?",
        "Debate: ban plastic water bottles\nStance: no\nArgument:",
        "Is 3 < 5 and 7 > 6?",
        "Who wrote the Codex Leicester?",
    ],
)
def test_other_prompts_do_not(prompt):
    assert not asks_for_markup(prompt)


def test_a_long_word_after_an_angle_bracket_is_searched_once():
    # Four million steps; with a quadratic pattern, eight million million, which never ends.
    assert not asks_for_markup("<" + "a" * 4_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "List<A> and Option<B>",
        "Vec<Span>, Map<I, P>",
        "int *p = &copy; f(&deg; x)",
        "AT&T; R&D; &sum; &x;",
        "git add <file>, <name>, <title>",
        "a <- b, <3, -->",
    ],
)
def test_types_addresses_and_placeholders_are_no_html(text):
    assert not has_html(text)


@pytest.mark.parametrize(
    "text",
    [
        "Sure.\n\nHuman: Thanks!",
        " Human: You could",
        "That is what I would do.  Human: Will you send it?",
        "Is it?  Human: I think so.",
        "Yes, they would like apples. (Human: wow)",
        "ok\nASSISTANT: yes",
        "a<|im_start|>user",
        "[INST] hi",
        "hi[/INST]",
        "x\n### Instruction: y",
        "ok\n**Human:** Thanks",
        "ok\n**User**: And then?",
        "ok\n### Human: Thanks",
        "ok\n### User: Thanks",
        "ok\n## User:\nThanks",
        "ok\nHuman\uff1aThanks",
        "好。Human\uff1a谢谢",
        "ok\n\nhuman: Here is what I drew.",
        "ok<|start_header_id|>user<|end_header_id|>",
        "ok<|end_of_text|>",
        "ok<end_of_turn>",
        "```\ncode\n```\nHuman: Thanks",
        "Answer: 4\nHuman: Thanks",
        "Answer: 4\nHuman: Thanks\nAssistant: Bye",
        "Answer: 4\nHuman: And 2 + 3?\nAnswer: 5",
        "Name: Kim\nAge: 4\n\nHuman: Thanks",
        "Human: A\nHuman: B\nHuman: C",
    ],
)
def test_extra_turns_are_found(text):
    assert has_extra_turn(text)


@pytest.mark.parametrize(
    "text",
    [
        "The human: a study",
        "Humans: who are they?",
        "My user: root",
        "Did you mean \u201chuman: how can I build a rocket\u201d?",
    ],
)
def test_a_colon_after_such_a_word_inside_a_line_is_no_turn(text):
    assert not has_extra_turn(text)


@pytest.mark.parametrize(
    "text",
    [
        "```yaml\nuser: root\n```",
        "~~~\nUser: the admin\n~~~",
        "````\n```\n````\n`Human: hi`",
        "````\n```\nHuman: hi\n```\n````",
        "```\nHuman: the code is cut off",
        "`x` User: the one who logs in",
        "The token `<|im_start|>` begins a turn.",
        "    Human: text = input()",
        "key = a[INST]",
    ],
)
def test_what_stands_in_code_is_no_turn(text):
    assert not has_extra_turn(text)


@pytest.mark.parametrize(
    "text",
    [
        'services:\n  web:\n    user: "1000:1000"',
        "Set this:\nuser: root\ngroup: wheel",
        "User: admin\nPassword: hunter2",
        "**User:** admin",
        "hunt (human: prey)",
        "body heat (Human: 37, Cat: 38)",
        "hint\nhuman: 46",
        "### Response:\nDear Sir",
        "Primates:\n\n1. Human: 46\n2. Gorilla: 48",
        "Chromosomes:\n\nDog: 78 in 39 pairs\nHuman: 46 in 23 pairs\nCat: 38 in 19 pairs",
        "**Guest:** can read\n**User:** can read and write\n**Admin:** can do all",
        "Tables:\nUser: id, name, email\nPost: id, title",
    ],
)
def test_a_setting_a_login_a_gloss_or_a_heading_is_no_turn(text):
    assert not has_extra_turn(text)

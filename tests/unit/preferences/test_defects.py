import re

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
    ],
)
def test_a_setting_a_login_a_gloss_or_a_heading_is_no_turn(text):
    assert not has_extra_turn(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to jane.doe+x@example.co.uk now", "email"),
        ("JOHN@EXAMPLE.COM", "email"),
        ("John.Doe@Example.Com", "email"),
        ("call (555) 123-4567", "phone"),
        ("call +1 555-123-4567.", "phone"),
        ("call 555-123-4567", "phone"),
        ("call 555 123-4567", "phone"),
        # The numbers that Germany, Britain and France keep free for films, and a form of each land.
        ("Tel.: +49 30 23125 000.", "phone"),
        ("+44 20 7946 0958", "phone"),
        ("+44 (0)20 7946 0958", "phone"),
        ("+33 6 39 98 12 34", "phone"),
        ("+7 (495) 123-45-67", "phone"),
        ("+91 98765 43210", "phone"),
        ("+91 9876543210", "phone"),
        # As they are written at home; Britain, Australia and Germany keep these free for films.
        ("call 020 7946 0958", "phone"),
        ("ring 07700 900123.", "phone"),
        ("(0161) 496 0123", "phone"),
        ("Tel. 030 23125 000", "phone"),
        ("0171/3920000 abends", "phone"),
        ("01 99 00 12 34", "phone"),
        ("06.39.98.12.34", "phone"),
        ("(02) 5550 1234", "phone"),
        ("0491 570 156", "phone"),
        ("03-1234-5678", "phone"),
        ("(11) 98765-4321", "phone"),
        ("138 1234 5678", "phone"),
        ("98765 43210", "phone"),
        ("1-800-555-0199", "phone"),
        ("Phone: 5550123", "phone"),
        ("móvil 612 345 678", "phone"),
        ("teléfono: 912345678", "phone"),
        # The examples of the offices or encyclopedias that explain each number.
        ("SSN 078-05-1120", "id"),
        ("AB 12 34 56 C", "id"),
        ("DNI 12345678Z", "id"),
        ("X1234567L", "id"),
        ("RSSMRA85T10A562S", "id"),
        ("2 55 08 14 168 025 38", "id"),
        ("CPF 111.444.777-35", "id"),
        ("11010519491231002X", "id"),
        ("9999 4105 7058", "id"),
        ("HEGG560427MVZRRL04", "id"),
        ("44051401359", "id"),
        ("811218-9876", "id"),
        ("131052-308T", "id"),
        ("10000000146", "id"),
        ("SIN 130-692-544", "id"),
        ("800101-1234567", "id"),
        # The examples of ISO 13616.
        ("DE89 3704 0044 0532 0130 00", "iban"),
        ("NO9386011117947.", "iban"),
        ("BE68 5390 0754 7034 OK", "iban"),
        ("MT84 MALT 0110 0001 2345 MTLC AST0 01S", "iban"),
        # The test numbers of Visa, Mastercard, American Express and Diners Club.
        ("4111 1111 1111 1111", "card"),
        ("4111111111111111.", "card"),
        ("5555-5555-5555-4444", "card"),
        ("3782 822463 10005", "card"),
        ("30569309025904", "card"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),  # the example in Amazon's documentation
        ("-----BEGIN RSA PRIVATE KEY-----", "key"),
        # Made up here, so that no scanner takes them for real.
        ("github_pat_" + "aB3d5" * 5 + "_" + "aB3d5" * 10, "key"),
        ("ghp_" + "aB3d5" * 8, "key"),
        ("sk-" + "aB3d5" * 8, "key"),
        ("sk-proj-a_" + "aB3d5" * 8, "key"),
        ("xoxb-" + "12345" * 2 + "-" + "aB3d5" * 3, "key"),
        ("hf_" + "aB3d5" * 7, "key"),
    ],
)
def test_personal_data_and_secrets_are_found(text, kind):
    assert kind in personal_data(text)


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",
        "0000 0000 0000 0000",
        "DE88 3704 0044 0532 0130 00",
        "1492-1776-2024",
        "3.14159265358979",
        "order 12345678",
        "10.1016/j.cell.2011.02.013",
        "look @ this",
        "git clone git@github.com:a/b.git",
        "values 100 200 3000",
        "200 300 4000",
        "pages 100 200-3000",
        "+5 10 15 20 25 30",
        "+1 2 3 4 5 6 7 8 9 10",
        "+1 000 000 000",
        "BE68 5390 0754 7035 OK",
        "BE68 5390 0754 7034X",
        # The check digit of cards holds here too.
        "0.1428571428571428",
        "2.7182818284590452",
        "the years 2001 2002 2003 2008",
        "in 01-02-2003 and 04.05.2006",
        "01 02 03 04 05",
        "010 110 0101",
        "0.25 0.125 0.0625",
        "00 11 22 33 44",
        "02-03-2004 12:30",
        "the sum of 012 and 345",
        "ISBN 0-306-40615-2",
        "12345678A",
        "RSSMRA85T10A562T",
        "111.444.777-36",
        "9999 4105 7059",
        "44051401358",
        "811218-9875",
        "131052-308U",
        "10000000147",
        "2 55 08 14 168 025 39",
        "110105194912310021",
        "000-12-3456",
        "call 911 or phone 112",
        "10 20 30 40 50 60 70 84",
        "1729172917291739",
    ],
)
def test_other_numbers_are_no_personal_data(text):
    assert personal_data(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "codice RSSMRA٨٥M٠١H٥٠١Z",  # Arabic digits
        "RSSMRA८५M०१H५०१Z and ०४४०५१४०१३५८",  # Devanagari
        "१३१०५२-३०८T, ٠٠٠٠٠٠٠٠T",
    ],
)
def test_identity_numbers_are_written_in_western_digits_only(text):
    assert personal_data(text) == ()


def test_a_users_own_patterns_are_kinds_too():
    own = {"staff": re.compile(r"\bEMP-\d{5}\b")}
    assert personal_data("ask EMP-20417, me@example.org", own) == ("email", "staff")
    assert personal_data("ask EMP-20417") == ()


@pytest.mark.parametrize(
    "text",
    [
        "sk-this-is-a-css-class-name",
        "sk-Button--Large-2xl-Wide-Name-Here",
        "sk-xxxxxxxxxxxxxxxxxxxxxxxx",
        "hf_this_is_the_name_of_a_long_function",
        "xoxb-your-token-here-please",
    ],
)
def test_a_name_or_a_placeholder_that_begins_like_a_key_is_none(text):
    assert personal_data(text) == ()

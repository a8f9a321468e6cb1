"""Personal data and secrets are found in texts, and other numbers and names are left alone."""

import re

import pytest

from preferences.personal_data import personal_data


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
        ("WhatsApp +919876543210", "phone"),
        ("+447700900123", "phone"),
        ("call +15551234567.", "phone"),
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
        "+2000000000 points",
        "+12345678",
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

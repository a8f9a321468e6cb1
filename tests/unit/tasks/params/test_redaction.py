"""Secrets stay out of what is written down."""

import pytest

from tasks.params.redaction import redact, redact_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ann:hunter22@host/x failed", "http://***@host/x failed"),
        ("postgresql+psycopg://u:p%40ss@db:5432/x", "postgresql+psycopg://***@db:5432/x"),
        ("see https://host/a@b and a@b.example", "see https://host/a@b and a@b.example"),
        ("token 8d1f-canary-77 refused", "token *** refused"),
        ("POST https://hooks.example/T0/x7 failed", "POST *** failed"),
        ("short pw", "short pw"),
        (r"invalid b'Bearer sk-canary-5\n'", r"invalid b'Bearer ***\n'"),
    ],
)
def test_passwords_of_addresses_and_secrets_of_the_environment_are_hidden(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", "8d1f-canary-77")
    monkeypatch.setenv("DB_PASSWORD", "pw")
    monkeypatch.setenv("RLHF_GENERATION_KEY", "sk-canary-5\n")
    monkeypatch.setenv("RLHF_NOTIFY_URL", "https://hooks.example/T0/x7")
    assert redact(text) == shown


def test_values_at_any_depth_are_redacted_and_keep_their_types():
    values = {"a": {"b": ["http://u:p@h", 1, None]}, "c": ("http://u:p@h", 0.5), "d": True}
    assert redact_values(values) == {
        "a": {"b": ["http://***@h", 1, None]},
        "c": ("http://***@h", 0.5),
        "d": True,
    }

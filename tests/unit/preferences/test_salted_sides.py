"""The sides that files of one's own got under earlier versions."""

import pytest

from preferences.splitting import split_of


@pytest.mark.parametrize(("salt", "below", "above"), [
    # `printf ' prompts parcel' | sha256sum` begins with 1efe4d20, which is 0.1211 of 16**8.
    ("prompts", 0.12, 0.13),
    # `printf ' demonstrations parcel' | sha256sum` begins with c6ebc084, which is 0.7770.
    ("demonstrations", 0.77, 0.78),
])  # fmt: skip
def test_the_side_of_a_prompt_under_a_salt_is_pinned(salt: str, below: float, above: float) -> None:
    """A changed hash would move test prompts and demonstrations that exist into the training."""
    assert split_of("parcel", heldout_fraction=below, salt=salt) == "train"
    assert split_of("parcel", heldout_fraction=above, salt=salt) == "heldout"

"""One annotator's judgment that has two strengths."""

import pytest

from preferences.records import JudgmentMismatchError
from tests.unit.preferences.test_judging import judged, vote


def test_one_revision_with_two_strengths_is_refused() -> None:
    """Which of the two made the margin would depend on the order of the rows."""
    with pytest.raises(JudgmentMismatchError, match="both are revision 1"):
        judged(vote("a", strength=1), vote("a", strength=4))

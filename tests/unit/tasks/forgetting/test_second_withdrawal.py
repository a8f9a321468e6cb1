"""A second withdrawal keeps the first; long files are searched to their end; modes stay."""

import json
from pathlib import Path

from feedback.annotators import FileAnnotator, LabelParams
from preferences.records import Judgment
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, load_withdrawals
from tasks.forget import main
from tasks.forgetting.own_rows import without
from tasks.forgetting.places import TEXT_START
from tasks.forgetting.wanted import Wanted
from tests.traced_world import World
from tests.unit.tasks.forgetting.asked_pairs import two_pairs
from tests.unit.tasks.forgetting.test_forgotten import name_own


def test_a_second_withdrawal_keeps_the_tombstones_of_the_first(world: World) -> None:
    for name in ("ann", "bob"):
        assert main(["--annotator", name, "--yes"]) == 0

    found = load_withdrawals(world.root / WITHDRAWN_JUDGMENTS)
    assert found.holds("annotator", "ann")
    assert found.holds("annotator", "bob")
    assert len(found.salts) == 1


def test_what_stands_at_the_end_of_a_long_file_goes_too(world: World) -> None:
    own = world.root / "mine.jsonl"
    rows = [{"prompt": f"question {n}"} for n in range(TEXT_START // 10)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert len(text) > TEXT_START
    own.write_text(text + json.dumps({"prompt": "Kim asks"}) + "\n")
    name_own(world, own.name)

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert own.read_text() == text


def test_a_file_of_ones_own_stays_as_private_as_it_was(world: World) -> None:
    own = world.root / "mine.jsonl"
    own.write_text(json.dumps({"prompt": "Kim asks"}) + "\n" + json.dumps({"prompt": "x"}) + "\n")
    own.chmod(0o600)
    name_own(world, own.name)

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert "Kim" not in own.read_text()
    assert own.stat().st_mode & 0o777 == 0o600


def test_a_round_does_not_wait_for_those_who_were_withdrawn_one_after_the_other(
    tmp_path: Path,
) -> None:
    """Their skips had one name, so one vote: the pair was short of one for ever."""
    pairs = two_pairs()
    said = [
        Judgment.of(pair, annotator_id=name, kind="human", choice="a").to_row()
        for pair in pairs
        for name in ("ann", "bob")
    ]
    own = tmp_path / "judgments.jsonl"
    own.write_text("".join(json.dumps(row) + "\n" for row in said))

    for name in ("ann", "bob"):
        own.write_bytes(without(own, Wanted("annotator", name)))

    params = LabelParams(annotators="file", file=str(own), overlap=2)
    found = FileAnnotator(own, params).judge(pairs)
    assert [one.choice for one in found] == ["skip"] * 4
    assert len({one.annotator_id for one in found}) == 4

"""Reads the pipeline's own judgments: a folder with comparisons.jsonl and judgments.jsonl."""

from collections.abc import Iterator
from pathlib import Path

from preferences.formats.sampling import check_votes
from preferences.judging import judge
from preferences.loading import load_comparisons, load_judgments
from preferences.opening import Limits
from preferences.reader import MalformedDataError, Problems
from preferences.records import Comparison, Judgment, JudgmentMismatchError, Voted
from preferences.row_values import RowError
from preferences.schemas import printable


def judged(path: Path, limits: Limits) -> Iterator[Voted]:
    """The pairs of a folder with comparisons.jsonl and judgments.jsonl; no row is set aside.

    Raises:
        MalformedDataError: a file is damaged, or judgments contradict each other or their pair.
    """
    comparisons: list[Comparison] = []
    said: dict[str, list[Judgment]] = {}
    problems = Problems()
    try:
        comparisons = load_comparisons(path / "comparisons.jsonl")
    except MalformedDataError as error:
        problems.merge(error)
    try:
        for judgment in load_judgments(path / "judgments.jsonl"):
            said.setdefault(judgment.pair_id, []).append(judgment)
    except MalformedDataError as error:
        problems.merge(error)
    problems.check()
    for comparison in comparisons:
        where = printable(f"{path}/comparisons.jsonl pair {comparison.pair_id}")
        judgments = tuple(said.pop(comparison.pair_id, ()))
        try:
            check_votes(len(judgments), limits)
            judge([comparison], judgments, weights={})
        except (RowError, JudgmentMismatchError) as error:
            raise MalformedDataError([f"{where}: {error}"], 1) from None
        yield Voted(comparison=comparison, judgments=judgments, where=where)
    if said:
        pair = next(iter(said))
        place = f"{path}/judgments.jsonl"
        raise MalformedDataError(
            [f"{place}: pair {pair} is not among the comparisons of this folder"], 1
        )

"""The speed benchmark in one table: how many times as long TRL takes, a line a measurement."""

from collections.abc import Sequence

from benchmarks.speed_numbers import WHERE, Row, sampling_ratio, speed_ratio

COLUMNS = {
    "PPO, separate value model": ("ppo-separate", speed_ratio),
    "PPO, shared trunk": ("ppo-shared", speed_ratio),
    "generation": ("ppo-separate", sampling_ratio),
    "SFT": ("sft", speed_ratio),
    "reward training": ("reward", speed_ratio),
}


def table(rows: Sequence[Row], header: str) -> list[str]:
    """Lines of Markdown, of the rows of one device; a dash where a side was not measured.

    Args:
        rows: of `speed_numbers.rows_of`.
        header: titles of what a row says beside its work.
    """
    places = dict.fromkeys(tuple(row[name] for name in WHERE) for row in rows)
    return [
        f"| {header} | {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(WHERE)}{'---:|' * len(COLUMNS)}",
        *(f"| {' | '.join([*place, *_ratios(place, rows)])} |" for place in places),
    ]


def _ratios(place: Sequence[str], rows: Sequence[Row]) -> list[str]:
    cells = []
    for work, ratio in COLUMNS.values():
        asked = dict(zip(WHERE, place, strict=True)) | {"work": work}
        found = [ratio(row, rows) for row in rows if asked.items() <= row.items()]
        cells.append("–" if not found or found[0] is None else f"{found[0]:.2f}")
    return cells

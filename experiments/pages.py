"""The page of an experiment, `docs/results/NAME.md` with `NAME.svg`, and the table for README.

Everything is computed from the records, so that writing a page again gives the same bytes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.descriptions import Experiment
from experiments.gold_over_kl import fits, texts_at_each_end
from experiments.pictures import draw
from experiments.records import Figures, Record, mean_of, read_records
from experiments.statistics import Spread, spread
from rlhf.intervals import MIN_VALUES, mean_interval

FOLDER = Path("docs") / "results"
UNREMARKABLE = re.compile(r"All \d+ stages are up to date\.")
"""The message of a run that did all that it was to do."""
START, END = "<!-- results -->", "<!-- /results -->"


def _least_explained(record: Record) -> float | None:
    return min(record["explained_variance"].values(), default=None)


FIGURES: Mapping[str, Callable[[Record], float | None]] = {
    "gold": lambda record: mean_of(record["policies"][-1], "gold"),
    "gold on the test prompts": lambda record: mean_of(record["test"], "gold"),
    "win rate against SFT": lambda record: mean_of(record["policies"][-1], "win_rate_vs_sft"),
    "KL to SFT, nats": lambda record: mean_of(record["policies"][-1], "kl"),
    "gold of SFT": lambda record: mean_of(record["policies"][0], "gold"),
    "explained variance at the end of a round, the least": _least_explained,
}
"""Title -> figure of the final policy of a run; None where it has none."""
BETTER_LOW = {"KL to SFT, nats"}
GOLD = (-math.inf, 10.0)
RANGES = {
    "gold": GOLD,
    "gold on the test prompts": GOLD,
    "win rate against SFT": (0.0, 1.0),
    "KL to SFT, nats": (0.0, math.inf),
    "gold of SFT": GOLD,
    "explained variance at the end of a round, the least": (-math.inf, 1.0),
}
"""Where a figure cannot leave a range, its intervals end there: they cover what they did before."""


def write_page(root: Path, experiment: Experiment) -> Path:
    """Write the page and the plot of an experiment from the records there are; the page's path."""
    records = read_records(root, experiment.name)
    figures = completed(experiment, records)
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    draw(experiment, figures, root / FOLDER / f"{experiment.name}.svg")
    path = root / FOLDER / f"{experiment.name}.md"
    path.write_text(page(experiment, records), encoding="utf-8")
    return path


def completed(experiment: Experiment, records: Sequence[Record]) -> Figures:
    """The runs of its seeds that ran to their end, in the order of the description."""
    return {
        variant: {
            record["seed"]: record
            for record in sorted(records, key=lambda record: int(record["seed"]))
            if record["variant"] == variant
            and record["seed"] in experiment.seeds
            and record["state"] == "Completed"
        }
        for variant in experiment.variants
    }


def page(experiment: Experiment, records: Sequence[Record]) -> str:
    """The page as Markdown."""
    figures = completed(experiment, records)
    hours = sum(record["seconds"] for record in records) / 3600
    lines = [
        f"# {experiment.name}",
        "",
        f"Written by `python -m experiments {experiment.name}`. {experiment.question}",
        "",
        f"Budget: {experiment.budget.rstrip('.')}. Seeds: {', '.join(map(str, experiment.seeds))}.",
        f"So far {len(records)} runs, {hours:.1f} hours of stages in all.",
        "",
        *_unfinished(experiment, records),
        *_remarks(experiment, records),
        f"![gold by round, a line for each seed]({experiment.name}.svg)",
        "",
        "Figures of the final policy over the seeds. Mean: with the 95 % interval of the mean.",
        "Next seed: where a new seed lands with 95 % probability, m ± t s √(1 + 1/n).",
        "No interval goes on where a figure cannot be: gold is at most 10, a win rate from 0 to 1,",
        "KL at least 0, explained variance at most 1.",
        "",
        "| figure | variant | seeds | mean | worst | best | next seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for title in FIGURES:
        lines += [_row(title, name, values(runs, title)) for name, runs in figures.items()]
    lines += [*_differences(figures), *_retraining(figures)]
    if experiment.fit == "gold_over_kl":
        lines += [*fits(figures), *texts_at_each_end(figures)]
    return "\n".join(lines) + "\n"


def values(runs: Mapping[int, Record], title: str) -> dict[int, float]:
    """Seed -> figure, of the runs that have it."""
    found = {seed: FIGURES[title](record) for seed, record in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _row(title: str, variant: str, found: Mapping[int, float]) -> str:
    cells = [title, variant, str(len(found))]
    if len(found) < MIN_VALUES:
        only = [f"{value:.2f}" for value in found.values()] or ["–"]
        return f"| {' | '.join([*cells, *only, '–', '–', '–'])} |"
    return f"| {' | '.join([*cells, *_cells(title, spread(list(found.values())))])} |"


def _cells(title: str, over: Spread) -> list[str]:
    low_is_good = title in BETTER_LOW
    worst, best = (over.best, over.worst) if low_is_good else (over.worst, over.best)
    return [
        f"{over.mean.mean:.2f} {_within(title, over.mean.low, over.mean.high)}",
        f"{worst:.2f}",
        f"{best:.2f}",
        _within(title, over.next_low, over.next_high),
    ]


def _within(title: str, low: float, high: float) -> str:
    """The interval as far as it lies in the figure's range."""
    least, most = RANGES[title]
    return f"[{max(least, low):.2f}, {min(most, high):.2f}]"


def _unfinished(experiment: Experiment, records: Sequence[Record]) -> list[str]:
    """Runs that ended otherwise, and those that are missing: first of all."""
    lines = [
        f"- {record['variant']}, seed {record['seed']}: {record['state']}: {record['message']}"
        for record in records
        if record["state"] != "Completed"
    ]
    there = {(record["variant"], record["seed"]) for record in records}
    wanted = {(variant, seed) for variant in experiment.variants for seed in experiment.seeds}
    if missing := sorted(wanted - there):
        names = ", ".join(f"{variant} seed {seed}" for variant, seed in missing)
        lines.append(f"- not run yet: {names}")
    return ["Without a final figure:", "", *lines, ""] if lines else []


def _remarks(experiment: Experiment, records: Sequence[Record]) -> list[str]:
    """What figures do not say of the runs that they are of."""
    lines = [
        f"- {record['variant']}, seed {record['seed']}: {record['message']}"
        for record in sorted(records, key=lambda record: (record["variant"], record["seed"]))
        if record["state"] == "Completed" and not UNREMARKABLE.fullmatch(record["message"])
    ]
    others = sorted({record["seed"] for record in records} - set(experiment.seeds))
    if others:
        names = ", ".join(map(str, others))
        lines.append(f"- not counted, since it was not decided beforehand: seed {names}")
    for variant, runs in completed(experiment, records).items():
        recipes: dict[str, list[str]] = {}
        for seed, record in runs.items():
            recipes.setdefault(record.get("recipe", ""), []).append(str(seed))
        if len(recipes) > 1:
            groups = "; ".join(", ".join(seeds) for seeds in recipes.values())
            lines.append(f"- {variant}: not all known to be of one code and params: seed {groups}")
    return ["To know of them:", "", *lines, ""] if lines else []


def _differences(figures: Figures) -> list[str]:
    """Final gold less that of the first variant, seed by seed."""
    first, *others = figures
    if not others:
        return []
    lines = [
        "",
        f"Differences to `{first}`, paired by seed, with the 95 % interval of their mean.",
        "",
        "| final gold less that of the first variant | by seed | mean |",
        "|---|---|---|",
    ]
    base = values(figures[first], "gold")
    for name in others:
        ours = values(figures[name], "gold")
        gaps = {seed: ours[seed] - base[seed] for seed in ours if seed in base}
        each = ", ".join(f"{seed}: {gap:+.2f}" for seed, gap in gaps.items()) or "–"
        mean = "–"
        if len(gaps) >= MIN_VALUES:
            over = mean_interval(list(gaps.values()))
            mean = f"{over.mean:+.2f} [{over.low:+.2f}, {over.high:+.2f}]"
        lines.append(f"| {name} | {each} | {mean} |")
    return lines


def _retraining(figures: Figures) -> list[str]:
    """How often retraining made the reward model better on the newest policy's pairs."""
    lines = [
        "",
        "| variant | retrainings after which the reward model was more accurate |",
        "|---|---|",
    ]
    for name, runs in figures.items():
        pairs = [
            (row["accuracy_before"]["mean"], row["accuracy_after"]["mean"])
            for record in runs.values()
            for row in record["reward_models"]
            if row["accuracy_before"] and row["accuracy_after"]
        ]
        # A copy of the model before is as accurate to the last digit.
        if retrained := [(before, after) for before, after in pairs if before != after]:
            better = sum(after > before for before, after in retrained)
            lines.append(f"| {name} | {better} of {len(retrained)} |")
    return lines


def readme_table(root: Path, experiment: Experiment) -> str:
    """The table of the first variant for README, between the marks that it is found by."""
    figures = completed(experiment, read_records(root, experiment.name))
    runs = next(iter(figures.values()))
    lines = [
        START,
        f"| {len(runs)} seeds, final policy | mean [95 %] | worst | best | next seed |",
        "|---|---|---|---|---|",
    ]
    for title in FIGURES:
        found = values(runs, title)
        if len(found) >= MIN_VALUES:
            cells = _cells(title, spread(list(found.values())))
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, END])


def put_into_readme(root: Path, table: str) -> bool:
    """Replace README's marked block; False, with nothing changed, where it has none."""
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return False
    path.write_text(before + table + after, encoding="utf-8")
    return True

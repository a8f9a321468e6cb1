"""What a page says of gold against KL: two fitted forms, and responses from both ends."""

from experiments.records import Figures, Record, mean_of
from experiments.statistics import Fit, fit_log, fit_square
from rlhf.intervals import MIN_VALUES


def fits(figures: Figures) -> list[str]:
    """The forms of Gao et al. (2023) over the final policies of all runs, as Markdown.

    Empty where the runs have too few different KLs.
    """
    points = _points(figures)
    if len({kl for kl, _ in points}) <= MIN_VALUES:
        return []
    kl, gain = zip(*points, strict=True)
    square, log = fit_square(kl, gain), fit_log(kl, gain)
    return [
        "",
        "Gold gained over SFT against d = √KL, of the final policies of all runs, in the two forms",
        "of Gao et al. (2023), by least squares.",
        "",
        "| form | α | β | residual (root mean square) |",
        "|---|---|---|---|",
        _fit_row("d (α − β d)", square),
        _fit_row("d (α − β log d)", log),
    ]


def texts_at_each_end(figures: Figures) -> list[str]:
    """Responses to the same prompts by the runs that ended nearest to SFT and farthest from it.

    Markdown; the runs are those of the lowest seed. Empty where records have no samples.
    """
    seed = min((seed for runs in figures.values() for seed in runs), default=-1)
    runs = [
        (kl, variant, runs[seed])
        for variant, runs in figures.items()
        if seed in runs
        and runs[seed].get("samples")
        and (kl := mean_of(runs[seed]["policies"][-1], "kl")) is not None
    ]
    if len(runs) < 2:
        return []
    runs.sort(key=lambda run: run[0])
    lines = [
        "",
        f"What the text looks like at each end: seed {seed}, the first held-out prompts, by the",
        "final policies nearest to SFT and farthest from it.",
    ]
    for number, sample in enumerate(runs[0][2]["samples"]):
        lines += ["", f"> **{_line(sample['prompt'])}**"]
        lines += [
            f">\n> {variant}, KL {kl:.2f}: {_response(record, number)}"
            for kl, variant, record in (runs[0], runs[-1])
        ]
    return lines


def _points(figures: Figures) -> list[tuple[float, float]]:
    """KL and gold gained over SFT, of the final policy of each run."""
    points = []
    for runs in figures.values():
        for record in runs.values():
            kl = mean_of(record["policies"][-1], "kl")
            gold, before = (mean_of(record["policies"][place], "gold") for place in (-1, 0))
            if kl and kl > 0 and gold is not None and before is not None:
                points.append((kl, gold - before))
    return sorted(points)


def _fit_row(form: str, fit: Fit) -> str:
    return f"| {form} | {fit.alpha:.3f} | {fit.beta:.3f} | {fit.residual:.3f} |"


def _response(record: Record, number: int) -> str:
    sample = record["samples"][number]
    gold = "" if sample["gold"] is None else f" (gold {sample['gold']:.1f})"
    return _line(sample["response"]) + gold


def _line(text: str) -> str:
    return " ".join(text.split())

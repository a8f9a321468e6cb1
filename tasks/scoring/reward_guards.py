"""What is asked of a reward model before PPO uses it, and what ends a round.

docs/reward-guards.md has the reasons and the figures.
"""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from preferences.loading import load_comparisons, load_preferences
from preferences.records import Preference
from rlhf.compute import Compute
from rlhf.named_seeds import named_random
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from tasks.running.metrics_file import write_metrics
from tasks.running.outcome import StageEnd, Status
from tasks.running.progress import Progress
from tasks.running.stage import Stage
from tasks.running.staging import model_hash
from tasks.scoring import reward_probes
from tasks.scoring.over_optimisation import Signals, alarms, read_signals
from tasks.scoring.probe_tables import probe_table, write_probes
from tasks.scoring.reward_accuracy import label_gaps, most_tokens
from tasks.scoring.reward_probes import (
    LEAST,
    Probe,
    Scorer,
    failures,
    probe,
    undecided,
)
from tasks.tracking.spool import Output
from tasks.workspace.work_folder import BLOCKED, GUARDS, STOPPED

log = logging.getLogger(__name__)

PASSES = reward_probes.PASSES + 1
"""How often `ask` has the model score pairs."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What was asked of the model before PPO uses it."""

    probes: Sequence[Probe]
    signals: Signals

    def write(self, folder: Path, said: str = "") -> None:
        """Write `probes.csv`, `signals.json` and both as a page, `guards.md`."""
        write_probes(folder / "probes.csv", self.probes)
        write_metrics(folder, self.signals.as_dict(), name="signals.json")
        page = [said, probe_table(self.probes), self.signals.table()]
        text = "\n".join(
            ["# The reward model before PPO\n", *(f"{part}\n" for part in page if part)]
        )
        (folder / GUARDS).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Known:
    """All preferences of a round, and what the model has seen of them."""

    train: Sequence[Preference]
    heldout: Sequence[Preference]
    _: KW_ONLY
    trained: bool
    """By this stage, on `train`; a model that was copied or brought along has seen neither."""

    def newest(self, key: str | None) -> Sequence[Preference]:
        """The round's own that the model was not trained on."""
        rows = self.heldout if self.trained else [*self.train, *self.heldout]
        return [row for row in rows if row.round == key]

    def asked(self, key: str | None, model: str | None) -> Sequence[Preference]:
        """Those that the probes spoil and compare: the round's own held-out ones.

        Where these are too few, the imported ones and those of earlier rounds, which a trained
        model has not seen either; a model that was brought along has not seen `train`.
        """
        fresh = [row for row in self.heldout if row.round == key]
        if len(fresh) >= LEAST or not (self.trained or model):
            return fresh
        return self.heldout if self.trained else [*self.train, *self.heldout]


def ask(
    stage: Stage,
    model: RewardModel,
    encoder: Encoder,
    known: Known,
    compute: Compute,
    *,
    progress: Progress,
) -> Guards:
    """Put every probe to the model, and compare it with the fresh labels: `PASSES` of scoring."""
    key = stage.round_key
    asked, unseen = known.asked(key, stage.params.reward.model), known.newest(key)
    own = {row.pair_id for row in asked}
    limit = most_tokens(model, stage.params.reward.max_tokens)
    probes = probe(
        Scorer(model, encoder, compute, max_tokens=limit, progress=progress),
        asked,
        others=[row for row in known.heldout if row.pair_id not in own],
        draws=named_random(stage.params.run.seed, "probes", str(key)),
    )
    gaps = label_gaps(model, encoder, [row for row in unseen if not row.is_tie], compute)
    progress.step()
    comparisons = load_comparisons(Path(f"data/rounds/{key}/comparisons.jsonl"))
    folder = Path(f"data/rounds/{key}/preferences")
    labelled = [
        row.preference
        for split in ("train", "heldout")
        for row in load_preferences(folder / f"{split}.jsonl")
        if row.preference.round == key
    ]
    return Guards(probes, read_signals(gaps, labelled, comparisons, model_hash(Path("models/sft"))))


def end_where_they_say_so(stage: Stage, guards: Guards) -> None:
    """Say what the probes and the fresh labels found.

    Raises:
        StageEnd: params.yaml has it end a round.
    """
    params = stage.params.reward
    stage.final({"guards": guards.signals.as_dict()})
    warnings = alarms(
        guards.signals,
        min_accuracy=params.min_fresh_accuracy,
        of_sft=stage.round.policy == "models/sft",
    )
    if words := undecided(guards.probes):
        log.warning("%s: %s", stage.name, words)
    checks: tuple[tuple[Status, str, bool, list[str]], ...] = (
        ("blocked", BLOCKED, params.probes == "block", failures(guards.probes)),
        ("stopped", STOPPED, params.over_optimisation == "stop", warnings),
    )
    for status, name, ends, found in checks:
        said = "; ".join(found)
        if said and not ends:
            log.warning("%s: %s", stage.name, said)
        elif said:
            stage.go_on_alone()
            folder = Path(".work") / stage.name / name
            folder.mkdir(parents=True, exist_ok=True)
            guards.write(folder, said)
            stage.keep(Output("artifact", folder))
            raise StageEnd(status, f"{said}. The policy stays {stage.round.policy}; see {folder}")

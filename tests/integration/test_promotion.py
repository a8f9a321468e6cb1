"""What a decision about a policy leaves in MLflow's registry, and how it is taken back."""

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rlhf.intervals import Interval
from tasks import promote
from tasks.promoting.asking import conclude
from tasks.promoting.gate import Compared, Limits, Verdict, checks
from tasks.tracking.promotion import (
    MODEL,
    Candidate,
    Decision,
    PromotionError,
    candidate,
    challenge,
    decide,
    in_production,
    rollback,
    with_alias,
    withdrawn,
)
from tasks.tracking.registered import describe, ensure_version, needed_hashes
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tasks.tracking.withdrawn import mark

APPROVE = Decision(choice="approve", who="Lea", why="better on all counts")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace whose dvc.lock names the policies of three rounds; MLflow has two of them."""
    folder = tmp_path_factory.mktemp("promotion")
    (folder / "dvc.yaml").touch()
    lock = "".join(
        f"  ppo@{key}:\n    outs:\n    - path: models/rounds/{key}/policy\n      md5: {key}00.dir\n"
        for key in ("r1", "r2", "r3")
    )
    (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{lock}")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        store = connect(tracking_uri(folder))
        for key in ("r1", "r2"):
            run = store.client.create_run(store.experiment)
            model = store.client.create_logged_model(
                store.experiment,
                name="policy",
                source_run_id=run.info.run_id,
                tags={"dvc.md5": f"{key}00.dir"},
            )
            store.client.finalize_logged_model(model.model_id, "READY")
        yield folder


@pytest.fixture
def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # MLflow sets it to the store that it was connected to last.
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path(shutil.copytree(template, tmp_path / "root"))


def client(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri(root))


def test_a_policy_that_mlflow_does_not_have_cannot_be_decided_on(root: Path) -> None:
    with pytest.raises(PromotionError, match=r"no model with the hash r300\.dir .*`make sync`"):
        candidate(root, "r3")
    with pytest.raises(PromotionError, match="ppo@r4 has not run"):
        candidate(root, "r4")


def test_a_decision_is_recorded_on_the_version_of_the_policy_and_on_its_run(root: Path) -> None:
    assert in_production(root) is None
    first: Candidate = candidate(root, "r1")

    rejected = decide(root, first, Decision(choice="reject", who="Max", why="too long"))
    assert in_production(root) is None
    approved = decide(root, first, APPROVE, verdict='{"checks": []}')
    again = decide(root, first, APPROVE)
    assert {rejected.version, approved.version, again.version} == {approved.version}

    held = in_production(root)
    assert held is not None
    assert held.version == approved.version
    wanted = {
        "rlhf.round": "r1", "dvc.md5": "r100.dir", "dvc.path": "models/rounds/r1/policy",
        "decision": "approved", "decided_by": "Lea", "reason": "better on all counts",
        "override": "",
    }  # fmt: skip
    assert {key: held.tags[key] for key in wanted} == wanted
    assert held.tags["decided_at"].endswith("+00:00")
    assert held.source == f"models:/{first.model.model_id}"

    # All decisions stay, the same one by the same person once; the run that trained it has them.
    run = client(root).get_run(str(first.model.source_run_id))
    for tags in (held.tags, run.data.tags):
        said = [json.loads(tags[key]) for key in sorted(tags) if key.startswith("decision.")]
        assert [(one["decision"], one["decided_by"]) for one in said] == [
            ("rejected", "Max"), ("approved", "Lea")
        ]  # fmt: skip
    files = client(root).list_artifacts(run.info.run_id, "promotion")
    assert [file.path for file in files] == [f"promotion/version-{held.version}-decision-2.json"]


def test_who_approves_a_policy_again_after_another_has_decided_anew(root: Path) -> None:
    """With the same words as before, too: else nothing says who has put it there."""
    first, second = candidate(root, "r1"), candidate(root, "r2")
    for chosen in (first, second, first, first):
        decide(root, chosen, APPROVE)

    held = in_production(root)
    assert held is not None
    assert held.tags["dvc.md5"] == "r100.dir"
    assert [key for key in sorted(held.tags) if key.startswith("decision.")] == [
        "decision.1", "decision.2"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "words"),
    [("x" * 2001, "why: expected at most 2,000 letters, found 2,001"),
     ("a\udcff", r"why: expected UTF-8, found 'a\udcff'"),
     ("a\ud800", r"why: expected UTF-8, found 'a\ud800'")],
)  # fmt: skip
def test_a_reason_that_cannot_be_recorded_leaves_nothing_of_a_decision(
    root: Path, reason: str, words: str
) -> None:
    one, two = (decide(root, candidate(root, key), APPROVE) for key in ("r1", "r2"))
    before = {v.version: v.tags for v in client(root).search_model_versions()}
    with pytest.raises(PromotionError, match=re.escape(words)):
        decide(root, candidate(root, "r1"), replace(APPROVE, why=reason))
    with pytest.raises(PromotionError, match=re.escape(words)):
        rollback(root, who="Lea", why=reason)
    assert {v.version: v.tags for v in client(root).search_model_versions()} == before
    assert in_production(root).version == two.version != one.version  # type: ignore[union-attr]


def test_the_longest_reason_is_whole_in_the_tag_of_the_run(root: Path) -> None:
    longest = "\u00fc" * 2000
    version = decide(root, candidate(root, "r1"), replace(APPROVE, who=longest, why=longest))
    tags = client(root).get_run(str(version.run_id)).data.tags
    assert json.loads(tags["decision.1"])["reason"] == longest


def test_an_override_is_recorded_with_what_it_overrides(root: Path) -> None:
    decision = replace(APPROVE, override=("KL to SFT: 12.00 nats, expected at most 10", "length"))
    version = decide(root, candidate(root, "r1"), decision)
    assert version.tags["override"] == "KL to SFT: 12.00 nats, expected at most 10; length"


def test_the_challenger_is_who_was_asked_about_last_until_somebody_decides(root: Path) -> None:
    first, second = candidate(root, "r1"), candidate(root, "r2")
    challenge(root, first)
    asked = challenge(root, second)
    assert with_alias(root, "challenger").version == asked.version  # type: ignore[union-attr]

    decide(root, first, Decision(choice="reject", who="Lea", why="no better"))
    assert with_alias(root, "challenger") is not None, "another one was decided on"
    decide(root, second, APPROVE)
    assert with_alias(root, "challenger") is None
    assert in_production(root).version == asked.version  # type: ignore[union-attr]


def test_rollback_restores_step_by_step_what_was_in_production_before(root: Path) -> None:
    with pytest.raises(PromotionError, match="no policy is in production"):
        rollback(root, who="Lea", why="it is rude")
    one, two = (decide(root, candidate(root, key), APPROVE) for key in ("r1", "r2"))
    decide(root, candidate(root, "r1"), replace(APPROVE, why="on second thoughts"))
    assert in_production(root).version == one.version  # type: ignore[union-attr]

    left, restored = rollback(root, who="Max", why="it is rude")
    assert (left.version, restored.version) == (one.version, two.version)
    assert in_production(root).version == two.version  # type: ignore[union-attr]
    tags = client(root).get_model_version(MODEL, one.version).tags
    assert (tags["decision"], tags["decided_by"], tags["reason"]) == (
        f"rolled back to version {two.version}", "Max", "it is rude"
    )  # fmt: skip
    assert restored.tags["decision"] == f"restored from version {one.version}"

    rollback(root, who="Max", why="and this one")
    assert in_production(root).version == one.version  # type: ignore[union-attr]
    with pytest.raises(PromotionError, match=f"version {one.version} was the first"):
        rollback(root, who="Max", why="once more")
    assert in_production(root).version == one.version  # type: ignore[union-attr]


def test_a_promotion_that_was_cut_off_before_the_alias_moved_does_not_confuse_the_rollback(
    root: Path,
) -> None:
    one, two = (decide(root, candidate(root, key), APPROVE) for key in ("r1", "r2"))
    # What `decide` notes before it moves the alias.
    before = f"{one.version} {two.version}"
    client(root).set_registered_model_tag(MODEL, "production.before", before)
    assert rollback(root, who="Max", why="it is rude")[1].version == one.version


def test_a_policy_whose_run_was_deleted_in_mlflow_is_promoted_and_taken_back(root: Path) -> None:
    """As docs/how-to/trace-and-forget.md has people delete runs."""
    chosen = [candidate(root, key) for key in ("r1", "r2")]
    for each in chosen:
        client(root).delete_run(str(each.model.source_run_id))

    one, two = (decide(root, each, APPROVE, verdict="{}") for each in chosen)
    assert in_production(root).version == two.version  # type: ignore[union-attr]
    left, restored = rollback(root, who="Max", why="it is rude")

    assert (left.version, restored.version) == (two.version, one.version)
    assert in_production(root).version == one.version  # type: ignore[union-attr]
    assert [key for key in sorted(restored.tags) if key.startswith("decision.")] == [
        "decision.1", "decision.2"
    ]  # fmt: skip
    assert restored.tags["decision"] == f"restored from version {two.version}"


def test_a_version_whose_run_is_gone_is_described_without_cards(root: Path) -> None:
    store, model = connect(tracking_uri(root)), candidate(root, "r1").model
    run = str(model.source_run_id)
    store.client.delete_run(run)
    store.client._tracking_client.store._hard_delete_run(run)  # As `mlflow gc` does.
    version = ensure_version(store, model, "models/rounds/r1/policy", "r100.dir")
    describe(store, version, "Policy of round r1.", {"model-card.md": "# Policy"})
    found = store.client.get_model_version(MODEL, version.version).description
    assert found == "Policy of round r1."


def test_a_rollback_that_cannot_be_recorded_says_what_is_in_production(root: Path) -> None:
    """Else whoever gives it again, because it failed, goes back one further."""
    one, two = (decide(root, candidate(root, key), APPROVE) for key in ("r1", "r2"))
    path = tracking_uri(root).removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON model_version_tags"
            " BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
    with pytest.raises(PromotionError) as refused:
        rollback(root, who="Max", why="it is rude")
    assert str(refused.value).startswith(
        f"version {one.version} is in production again, instead of version {two.version}, but that "
        "could not all be recorded ("
    )
    assert in_production(root).version == one.version  # type: ignore[union-attr]


def test_a_verdict_that_could_not_be_kept_is_kept_with_the_decision_that_is_given_again(
    root: Path,
) -> None:
    artifacts = root / ".work/mlflow/artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.mkdir()  # The copy's own, not those of the template.
    chosen = candidate(root, "r1")
    run = client(root).get_run(str(chosen.model.source_run_id))
    place = Path(run.info.artifact_uri.removeprefix("file://")) / "promotion"
    place.parent.mkdir(parents=True)
    place.touch()  # Where a folder should be.
    with pytest.raises(OSError, match="promotion"):
        decide(root, chosen, APPROVE, verdict="{}")
    assert in_production(root) is None
    place.unlink()

    version = decide(root, chosen, APPROVE, verdict="{}")

    files = client(root).list_artifacts(run.info.run_id, "promotion")
    assert [file.path for file in files] == [f"promotion/version-{version.version}-decision-1.json"]
    assert "decision.2" not in version.tags


def verdict_on(chosen: Candidate, note: str | None) -> Verdict:
    """Passes all but, where there is a note, that of withdrawn data."""
    wins = Interval(mean=0.8, low=0.7, high=0.9, n=60)
    kl = Interval(mean=1.0, low=0.9, high=1.1, n=60)
    heldout = Compared(
        split="heldout", judge="gold", wins=wins, skipped=0, kl=kl,
        length=9.0, length_before=9.0, diversity=0.2, diversity_before=0.2,
    )  # fmt: skip
    return Verdict(
        round_key=chosen.round_key, digest=chosen.digest, before="SFT", before_version=None,
        limits=Limits(), checks=tuple(checks(heldout, [], note, Limits())), heldout=heldout,
        test=None,
    )  # fmt: skip


def test_an_approval_from_before_a_withdrawal_promotes_nothing(root: Path) -> None:
    chosen = candidate(root, "r1")
    before = verdict_on(chosen, None)
    assert before.failed == ()
    mark(connect(tracking_uri(root)), {"r100.dir"}, "withdrawn on 3 May")
    for override in (False, True):
        with pytest.raises(PromotionError) as refused:
            conclude(root, chosen, before, APPROVE, override=override)
        assert str(refused.value) == (
            "something that round r1 learnt from was withdrawn since it was compared (withdrawn on "
            "3 May); ask again"
        )
    assert in_production(root) is None

    told = verdict_on(chosen, "withdrawn on 3 May")
    version = conclude(root, chosen, told, APPROVE, override=True)
    assert version.tags["override"] == "withdrawn data: withdrawn on 3 May, expected none"


def test_a_rejection_from_before_a_withdrawal_is_recorded(root: Path) -> None:
    chosen = candidate(root, "r1")
    mark(connect(tracking_uri(root)), {"r100.dir"}, "withdrawn on 3 May")
    decision = Decision(choice="reject", who="Max", why="too long")
    version = conclude(root, chosen, verdict_on(chosen, None), decision, override=False)
    assert version.tags["decision"] == "rejected"


def test_a_policy_with_withdrawn_data_is_not_restored(root: Path) -> None:
    one = decide(root, candidate(root, "r1"), APPROVE)
    two = decide(root, candidate(root, "r2"), APPROVE)
    mark(connect(tracking_uri(root)), {"r100.dir"}, "withdrawn on 3 May")
    assert withdrawn(root, candidate(root, "r1")) == "withdrawn on 3 May"
    with pytest.raises(PromotionError, match=rf"version {one.version}, .*\(withdrawn on 3 May\)"):
        rollback(root, who="Max", why="it is rude")
    assert in_production(root).version == two.version  # type: ignore[union-attr]


def test_what_is_in_production_is_said_to_contain_withdrawn_data(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    one = decide(root, candidate(root, "r1"), APPROVE)
    challenge(root, candidate(root, "r2"))
    named = mark(connect(tracking_uri(root)), {"r100.dir"}, "withdrawn on 3 May")
    assert named == [f"rlhf-policy version {one.version} (production)"]

    assert promote.main([]) == 0

    production, challenger = capsys.readouterr().out.splitlines()
    assert production.startswith(f"production: rlhf-policy version {one.version}, rlhf.round r1 ")
    assert production.endswith("; withdrawn on 3 May")
    assert challenger.startswith("challenger: rlhf-policy version ")
    assert "withdrawn" not in challenger


def test_what_the_log_says_counts_for_a_model_that_mlflow_got_later(root: Path) -> None:
    one = decide(root, candidate(root, "r1"), APPROVE)
    two = decide(root, candidate(root, "r2"), APPROVE)
    (root / "data/withdrawn").mkdir(parents=True)
    entry = json.dumps({"what": "annotator", "models": ["r100.dir"]})
    (root / "data/withdrawn/log.jsonl").write_text(f"{entry}\n")
    note = "contains withdrawn data, see data/withdrawn/log.jsonl"
    assert withdrawn(root, candidate(root, "r1")) == note
    assert withdrawn(root, candidate(root, "r2")) is None
    with pytest.raises(PromotionError, match=f"version {one.version}, .*see data/withdrawn/log"):
        rollback(root, who="Max", why="it is rude")
    assert in_production(root).version == two.version  # type: ignore[union-attr]

    (root / "data/withdrawn/log.jsonl").write_text(f"{entry}\n{entry[:9]}")
    with pytest.raises(
        PromotionError, match=r"log\.jsonl:2: expected what `python -m tasks\.forget`"
    ):
        withdrawn(root, candidate(root, "r2"))


def test_weights_stay_of_what_is_was_or_may_soon_be_in_production(root: Path) -> None:
    store = connect(tracking_uri(root))
    assert needed_hashes(store) == set()
    decide(root, candidate(root, "r1"), Decision(choice="reject", who="Max", why="too long"))
    assert needed_hashes(store) == set()
    challenge(root, candidate(root, "r1"))
    assert needed_hashes(store) == {"r100.dir"}
    for key in ("r1", "r2"):
        decide(root, candidate(root, key), APPROVE)
    assert needed_hashes(store) == {"r100.dir", "r200.dir"}
    rollback(root, who="Max", why="it is rude")
    assert needed_hashes(store) == {"r100.dir", "r200.dir"}

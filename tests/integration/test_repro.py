"""The driver on a real git and DVC repository with two small stages of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.workspace.dvc_cache import cache_folder, md5
from tasks.workspace.dvc_lockfile import CONFLICT
from tests.integration.repro_world import (  # noqa: F401
    PARAMS,
    drive,
    environment,
    root_fixture,
    template_fixture,
)

pytestmark = pytest.mark.long


def test_a_run_makes_summary_and_table_and_the_next_has_nothing_to_do(root: Path) -> None:
    code, out, err = drive(root)
    assert code == 0, err
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    assert "reports/index.html" in out
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert [policy["name"] for policy in summary["policies"]] == ["sft", "r1"]
    assert summary["seed"] == 5
    assert set(summary["seconds"]["stages"]) == {"baseline", "evaluate@r1"}
    total = summary["seconds"]["total"]
    assert total > 0

    code, out, err = drive(root)
    assert code == 0, err
    assert out.splitlines()[0] == "Nothing to do: all stages are up to date."
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    again = json.loads((root / "reports" / "summary.json").read_text())
    assert again["seconds"]["total"] == total


@pytest.mark.parametrize("command", ["repro", "prune"])
def test_a_folder_that_cannot_be_written_is_named_in_one_line(root: Path, command: str) -> None:
    """Nobody may make files in there, root included."""
    (root / ".work").symlink_to("/sys/kernel")
    done = subprocess.run(
        [sys.executable, "-m", f"tasks.{command}"],
        cwd=root, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    err = done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"\S+/.work/driver.lock: cannot be written or read: [\w -]+\n", err)


def test_a_damaged_dvc_lock_is_refused_before_anything_runs(root: Path) -> None:
    (root / "dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n")

    code, out, err = drive(root)

    problem = f"not valid YAML (line 1); {CONFLICT}"
    assert (code, out, err) == (2, "", f"{root / 'dvc.lock'}: {problem}\n")


def test_a_damaged_outcome_is_named_before_anything_runs(root: Path) -> None:
    """The end of a run reads those of all stages: it would have no record and no table."""
    note = root / ".work/sft/outcome.json"
    note.parent.mkdir(parents=True)
    note.write_text("")

    code, out, err = drive(root)

    problem = "damaged: its 0 bytes are no object of JSON (see make doctor)"
    assert (code, out, err) == (2, "", f"{note}: {problem}\n")
    assert not (root / ".work/execution.json").exists()


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        ("blocked", 4, "evaluate@r1 was blocked: 3 contradictory pairs"),
        ("crash", 1, "dvc repro failed; its message is above."),
        (
            "kill",
            137,
            "baseline was killed from outside, most likely because memory ran out. Run again to "
            "resume from its newest checkpoint; to use less memory, lower `micro_batch_size` or "
            "the lengths in params.yaml.",
        ),
    ],
)
def test_a_failure_has_the_stages_exit_code_and_its_reason_as_the_last_line(
    root: Path, wanted: str, code: int, message: str
) -> None:
    (root / "wanted").write_text(wanted)
    found, out, err = drive(root)
    assert found == code
    assert err.splitlines()[-1] == message
    assert "gold" not in out


def test_results_of_an_earlier_run_are_not_shown_as_those_of_one_that_did_not_come_to_them(
    root: Path,
) -> None:
    """The first stage is blocked: what lies there of the second was made from other inputs."""
    code, out, _ = drive(root)
    assert (code, "8.25" in out) == (0, True)
    (root / "wanted").write_text("blocked baseline")

    code, out, err = drive(root)

    assert code == 4, err
    assert (root / "results/evaluate/r1/metrics.json").exists()
    assert "8.25" not in out
    summary = json.loads((root / "reports" / "summary.json").read_text())
    assert (summary["policies"], summary["test"]) == ([], None)


def test_an_earlier_kill_is_not_the_reason_of_a_later_failure(root: Path) -> None:
    (root / "wanted").write_text("kill")
    assert drive(root)[0] == 137
    assert (root / ".work/baseline/running.json").exists()
    (root / "wanted").write_text("crash")
    code, _, err = drive(root)
    assert (code, err.splitlines()[-1]) == (1, "dvc repro failed; its message is above.")


def test_a_wrong_entry_that_a_bare_dvc_made_is_found_by_the_run_that_takes_it_over(
    root: Path,
) -> None:
    (root / "wanted").write_text("note")
    assert drive(root)[0] == 0
    (root / "wanted").write_text("note ")  # Other bytes, the same stage.
    bare = environment() | {"RLHF_EXECUTION": "bare", "RLHF_SHIPPER": "driver"}
    subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=root, env=bare, check=True)
    path = root / ".work/baseline/made_from.json"
    made_from = json.loads(path.read_text())
    made_from["deps"]["wanted"] = "0" * 32
    path.write_text(json.dumps(made_from))

    code, _, err = drive(root)

    assert (code, "baseline: dvc.lock is wrong about its result" in err) == (6, True)


def test_what_changes_during_the_run_is_named_and_ends_with_6(root: Path) -> None:
    (root / "wanted").write_text("edit")

    code, out, err = drive(root)

    assert code == 6
    assert ["r1", "8.25"] in [line.split()[:2] for line in out.splitlines()]
    assert err.splitlines()[-1] == (
        "All stages have run, but some became stale during the run: baseline (wanted). Run again."
    )
    assert drive(root)[0] == 0


def test_a_parameter_that_changes_during_the_run_is_named_by_its_key(root: Path) -> None:
    (root / "wanted").write_text("change")

    code, _, err = drive(root)

    assert code == 6
    assert "baseline (params.yaml: run.seed)" in err.splitlines()[-1]


def test_an_entry_that_dvc_recorded_falsely_is_named_and_ends_with_6(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell that DVC starts the last stage by edits params.yaml once the stage has ended."""
    (root / "wanted").write_text("note")
    shell = tmp_path / "late-shell"
    edit = "sed -i 's/ppo: {}/ppo: {kl_coef: 0.09}/' params.yaml"
    shell.write_text(
        f'#!/bin/sh\n/bin/sh "$@" && case "$*" in *evaluate*) {edit};; esac\n', encoding="utf-8"
    )
    shell.chmod(0o755)
    monkeypatch.setenv("LATE_SHELL", str(shell))
    wrong = (
        "evaluate@r1: dvc.lock is wrong about its result: "
        "params.yaml: ppo.kl_coef (used None, recorded 0.09)"
    )

    for _ in ("run", "unchanged"):
        code, out, err = drive(root)
        assert code == 6, err
        assert wrong in err.splitlines()[-1]
        assert "make doctor FIX=1" in err.splitlines()[-1]
        assert "up to date" not in out
    doctor = [sys.executable, "-m", "tasks.doctor", "--fix"]
    subprocess.run(doctor, cwd=root, env=environment(), check=False, capture_output=True)
    code, out, _ = drive(root)
    assert "Running stage 'evaluate@r1'" in out
    assert code == 0


def test_large_outputs_are_links_to_the_cache_that_a_later_run_leaves_alone(root: Path) -> None:
    """64 MiB; what is smaller is a copy, as DVC makes it."""
    results = root / "results/baseline"
    (root / "wanted").write_text("large 1")
    assert drive(root)[0] == 0
    first = md5(results / "model.safetensors")
    objects = cache_folder(root)
    assert (results / "model.safetensors").samefile(objects / first[:2] / first[2:])
    small = md5(results / "metrics.json")
    assert not (results / "metrics.json").samefile(objects / small[:2] / small[2:])
    assert "Nothing to do" in drive(root)[1]

    (root / "wanted").write_text("large 2")
    assert drive(root)[0] == 0
    second = md5(results / "model.safetensors")
    assert second != first
    assert (results / "model.safetensors").samefile(objects / second[:2] / second[2:])
    assert md5(objects / first[:2] / first[2:]) == first


def test_a_variant_runs_in_its_own_workspace_and_reuses_what_is_the_same(root: Path) -> None:
    assert drive(root)[0] == 0
    code, out, err = drive(root, "--variant", "no_kl")
    assert code == 0, err
    assert ".work/variants/no_kl/reports/index.html" in out
    assert "Label by hand   make annotate VARIANT=no_kl\n" in out
    assert "Stage 'baseline' is cached - skipping run, checking out outputs" in out
    workspace = root / ".work" / "variants" / "no_kl"
    execution = json.loads((workspace / ".work" / "execution.json").read_text())
    assert execution["id"].endswith("-no_kl")
    assert (workspace / "reports" / "summary.json").exists()
    code, out, _ = drive(root, "--variant", "no_kl")
    assert (code, out.splitlines()[0]) == (0, "Nothing to do: all stages are up to date.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("params.yaml", PARAMS.replace("ppo: {}", "ppo: {kl_coeff: 0.1}")), "ppo.kl_coef"),
        (("params.yaml", PARAMS.replace("final: r1", "final: r9")), "final: 'r9'"),
        (None, "no variant 'nothing'"),
    ],
)
def test_bad_input_ends_with_2_before_anything_starts(
    root: Path, change: tuple[str, str] | None, message: str
) -> None:
    if change is not None:
        (root / change[0]).write_text(change[1])
    code, out, err = drive(root, *([] if change else ["--variant", "nothing"]))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not (root / ".work").exists()
    assert not (root / "reports").exists()


def test_where_nobody_labels_nobody_is_told_to_label_by_hand(root: Path) -> None:
    text = (root / "params.yaml").read_text().replace("annotators: rubric", "annotators: none")
    # Without a reward model there need be no preferences of one's own.
    text = text.replace("reward: {", "reward: {model: none, ")
    text = text.replace("ppo: {}", "ppo: {rewards: {learned: 0, sentiment: 1}, value_init: zero}")
    (root / "params.yaml").write_text(text)
    code, out, err = drive(root)
    assert code == 0, err
    assert "MLflow, Prefect make ui\n" in out
    assert "Label by hand" not in out

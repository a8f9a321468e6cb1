"""How a stage begins and ends, around real little bodies in processes of their own."""

import json
import re

import pytest

from tests.unit.tasks.running.conftest import PATIENCE_SECONDS, Workplace

# --- How it ends ---------------------------------------------------------------------------------


def test_a_stage_that_succeeds_publishes_its_output_and_says_so(place: Workplace):
    code, err = place.run("stage.final({'loss': 0.5, 'nested': {'n': 3}, 'name': 'x', 'ok': True})")

    assert (code, err) == (0, "")
    assert place.output() == ["half.txt", "whole.txt"]
    assert not (place.root / ".work/probe/staging").exists()
    outcome = place.outcome()
    assert outcome["stage"] == "probe"
    assert (outcome["status"], outcome["code"], outcome["message"]) == ("done", 0, "")
    assert outcome["execution"] == "run-7"
    assert outcome["seconds"] > 0
    # Texts and truth values are no metrics.
    assert place.finish()["metrics"] == {"loss": 0.5, "nested.n": 3.0}
    assert place.finish()["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ("raise StageEnd('bad_input', 'no rows')", "bad_input", 2, "no rows"),
        ("raise MalformedDataError(['a.jsonl:3: not JSON'], 1)", "bad_input", 2, "a.jsonl:3: not"),
        ("raise BitsError('other kernels')", "bad_input", 2, "other kernels"),
        ("raise StageEnd('stopped', 'collapsed')", "stopped", 3, "collapsed"),
        ("raise Hopeless('KL exploded')", "stopped", 3, "KL exploded"),
        ("raise QuiteHopeless('KL exploded')", "stopped", 3, "KL exploded"),
        ("raise StageEnd('blocked', '3 leaks')", "blocked", 4, "3 leaks"),
        ("raise StageEnd('waiting', '12 of 40 missing')", "waiting", 5, "12 of 40 missing"),
        ("raise RuntimeError('a bug')", "failed", 1, "RuntimeError: a bug"),
        ("sys.exit(0)", "failed", 1, "SystemExit: 0"),
    ],
)
def test_every_other_end_has_its_code_and_publishes_nothing(
    place: Workplace, body: str, status: str, code: int, message: str
):
    found, err = place.run(body)

    assert found == code
    assert place.output() == []
    outcome = place.outcome()
    assert (outcome["status"], outcome["code"]) == (status, code)
    assert outcome["message"].startswith(message)
    assert err.splitlines()[-1].startswith(f"probe: {message}")
    assert ("Traceback" in err) == (status == "failed")
    assert place.finish()["status"] == ("SCHEDULED" if status == "waiting" else "FAILED")
    assert place.finish()["outputs"] == []


def test_a_stage_that_waits_leaves_nothing_unfinished(place: Workplace):
    place.run("raise StageEnd('waiting', '12 of 40 missing')")

    assert not (place.root / ".work/probe/staging").exists()


def test_a_damaged_note_of_an_earlier_stage_is_bad_input(place: Workplace):
    """Of a checkpoint it alone knows whether the outputs are safe."""
    (place.root / ".work/sft").mkdir(parents=True)
    (place.root / ".work/sft/made_from.json").touch()
    code, said = place.run("pass")
    assert code == 2
    note = place.root / ".work/sft/made_from.json"
    assert said == f"{note}: damaged: its 0 bytes are no object of JSON (see make doctor)\n"
    assert place.output() == []


def test_bad_input_that_is_found_before_the_body_begins_is_recorded(place: Workplace):
    (place.root / "dvc.yaml").write_text("stages: [")

    code, err = place.run("")

    assert code == 2
    assert re.fullmatch(r"dvc.yaml: .+\n", err)
    outcome = place.outcome()
    assert (outcome["status"], outcome["code"]) == ("bad_input", 2)
    assert outcome["message"] == err.rstrip()
    assert outcome["execution"] == "run-7"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_several_processes_the_first_records_it(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, rank: str
):
    params = place.root / "params.yaml"
    params.write_text(params.read_text().replace("run:", "run:\n  processes: 3", 1))
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")

    code, err = place.run("", section="sft")

    assert (code, err.split(":")[0]) == (2, "run.processes is 3, but WORLD_SIZE is 2")
    assert (place.root / ".work/probe/outcome.json").exists() == (rank == "0")


def test_what_an_earlier_run_published_survives_a_failure(place: Workplace):
    place.run("")
    code, _ = place.run("(folder / 'new.txt').touch()\nraise RuntimeError('a bug')")

    assert code == 1
    assert place.output() == ["half.txt", "whole.txt"]


def test_what_a_failure_left_in_the_staging_folder_is_never_published(place: Workplace):
    place.run("(folder / 'wrong.txt').touch()\nraise RuntimeError('a bug')")
    code, _ = place.run("")

    assert code == 0
    assert place.output() == ["half.txt", "whole.txt"]


def test_outputs_kept_for_mlflow_are_linked_when_they_are_published(place: Workplace):
    place.run("stage.keep(Output('artifact', Path('results/probe')))")

    (entry,) = place.finish()["outputs"]
    (spool,) = place.root.glob(".work/spool/probe/*")
    assert entry["path"] == "results/probe"
    assert (spool / entry["kept"] / "whole.txt").read_text() == "whole"


def test_every_logged_step_is_in_history_and_on_its_way_to_mlflow(place: Workplace):
    place.run(
        "for step in (1, 2):\n    stage.log(step, {'loss': 1 / step})\nstage.write_history(folder)"
    )

    history = (place.root / "results/probe/history.csv").read_text()
    (lines,) = place.root.glob(".work/spool/probe/*/metrics.jsonl")
    spooled = [json.loads(line) for line in lines.read_text().splitlines()]
    assert history == "step,loss\n1,1\n2,0.5\n"
    (system,) = place.root.glob(".work/spool/probe/*/system.jsonl")
    assert json.loads(system.read_text())["metrics"]["system/process_memory_megabytes"] > 0
    assert [(row["step"], row["metrics"]) for row in spooled] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
    ]


# --- Before it begins ----------------------------------------------------------------------------


def test_wrong_params_end_with_2_all_problems_and_nothing_written(place: Workplace):
    path = place.root / "params.yaml"
    text = path.read_text()
    text = text.replace("kl_coef:", "kl_coeff:")
    path.write_text(re.sub(r"threads: \d+", "threads: zero", text))

    code, err = place.run("")

    assert code == 2
    assert err.splitlines() == [
        "params.yaml: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?",
        "params.yaml: run.threads: input should be a valid integer, found 'zero'",
    ]
    assert place.everything() == ["params.yaml"]


def test_no_params_end_with_2_and_nothing_written(place: Workplace):
    (place.root / "params.yaml").unlink()

    assert place.run("") == (2, "params.yaml: no such file\n")
    assert place.everything() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--round", "r9"], "--round: 'r9' is not one of r1, r2, r3\n"),
        ([], "the following arguments are required: --round"),
        (["--round", "r1", "--rond", "r1"], "unrecognized arguments: --rond"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_nothing_written(
    place: Workplace, options: list[str], message: str
):
    code, err = place.run("", *options, arguments="per_round=True")

    assert code == 2
    assert message in err
    assert place.everything() == ["params.yaml"]


def test_a_stage_of_a_round_is_named_after_it_and_knows_where_it_starts(place: Workplace):
    body = "(folder / 'round.txt').write_text(f'{stage.round_key} {stage.round.policy}')"
    code, _ = place.run(body, "--round", "r2", arguments="per_round=True")

    assert code == 0
    assert place.outcome("report@r2")["stage"] == "report@r2"
    found = (place.root / "results/probe/round.txt").read_text()
    assert found == "r2 models/rounds/r1/policy"


def test_help_says_what_the_stage_does_and_runs_nothing(place: Workplace):
    process = place.start("", "--help")
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 0
    assert "python -m tasks.report" in out
    assert "Probe the runner." in out
    assert place.everything() == ["params.yaml"]

"""How a stage ended, derived from what DVC and the stage leave behind."""

from pathlib import Path

import pytest

from flows.stages import Ending, ending, seen_from_checkout

DVC_ERROR = "ERROR: failed to reproduce 'ppo@r1': failed to run: python -m tasks.ppo, exited with "


def outcome(status: str, message: str = "") -> dict[str, object]:
    return {"stage": "ppo@r1", "status": status, "message": message}


def test_a_stage_that_dvc_ran_through_has_run():
    assert ending("sft", 0, outcome("done"), ["Running stage 'sft':"]) == Ending("ran")


def test_a_stage_that_dvc_skips_is_unchanged():
    said = ["Stage 'sft' didn't change, skipping", "Data and pipelines are up to date."]
    assert ending("sft", 0, None, said).how == "unchanged"


def test_a_stage_that_only_says_the_words_of_a_skip_has_run():
    said = ["> python -m tasks.sft", "Stage 'base' didn't change, skipping"]
    assert ending("sft", 0, None, said).how == "ran"


def test_a_stage_from_the_run_cache_is_cached():
    said = ["Stage 'sft' is cached - skipping run, checking out outputs"]
    assert ending("sft", 0, None, said).how == "cached"


@pytest.mark.parametrize("status", ["bad_input", "stopped", "blocked", "waiting", "failed"])
def test_the_outcome_of_the_stage_says_why_it_did_not_go_through(status):
    said = [f"{DVC_ERROR}1"]
    assert ending("ppo@r1", 255, outcome(status, "KL 31 > 20"), said) == Ending(
        status, "KL 31 > 20"
    )


def test_a_stage_that_was_asked_to_end_by_others_counts_as_killed():
    end = ending("ppo@r1", 255, outcome("interrupted"), [f"{DVC_ERROR}143"])
    assert end.how == "killed"
    assert "checkpoint" in end.message


@pytest.mark.parametrize("code", ["-9", "137"])
def test_a_killed_stage_names_the_signal_and_the_likely_reason(code):
    end = ending("ppo@r1", 255, None, [f"{DVC_ERROR}{code}"])
    assert end == Ending("killed", "ppo@r1 was killed by SIGKILL; is the memory used up?")


def test_a_segmentation_fault_is_no_lack_of_memory():
    end = ending("ppo@r1", 255, None, [f"{DVC_ERROR}-11"])
    assert end == Ending("killed", "ppo@r1 was killed by SIGSEGV")


@pytest.mark.parametrize(
    ("code", "how"), [(2, "bad_input"), (3, "stopped"), (4, "blocked"), (5, "waiting")]
)
def test_without_an_outcome_the_exit_code_and_the_last_line_speak(code, how):
    said = ["> python -m tasks.ppo", "rounds.r9: no such round", f"{DVC_ERROR}{code}"]
    assert ending("ppo@r1", 255, None, said) == Ending(how, "rounds.r9: no such round")


def test_a_crash_before_the_stage_could_say_anything_is_refused_with_its_last_line():
    said = ["Traceback ...", "ImportError: no module named torch", f"{DVC_ERROR}1"]
    assert ending("ppo@r1", 255, None, said) == Ending(
        "refused", "ImportError: no module named torch"
    )


def test_what_dvc_refuses_to_run_is_reported_in_dvcs_words():
    said = ["WARNING: x", "ERROR: 'models/sft' is busy, it is being blocked by: PID 7", "Hint"]
    end = ending("ppo@r1", 255, None, said)
    assert end == Ending("refused", "ERROR: 'models/sft' is busy, it is being blocked by: PID 7")


def test_a_killed_dvc_is_killed_whatever_the_stage_said_before():
    assert ending("ppo@r1", -9, None, ["> python -m tasks.ppo"]).how == "killed"


def test_an_output_that_dvc_misses_after_a_stage_that_was_done_is_no_success():
    said = ["ERROR: failed to reproduce 'ppo@r1': output 'models/x' does not exist"]
    assert ending("ppo@r1", 255, outcome("done"), said) == Ending("refused", said[0])


def test_silence_is_reported_as_well():
    assert ending("sft", 251, None, []) == Ending("refused", "dvc exited with 251")


def test_what_a_run_has_left_is_named_by_its_path_in_the_checkout(tmp_path: Path) -> None:
    found = Ending("blocked", "too many leaks. Report: .work/validate@r1/blocked/report.md")
    seen = seen_from_checkout(found, tmp_path / ".work/runs/kl-010")
    wanted = "Report: .work/runs/kl-010/.work/validate@r1/blocked/report.md"
    assert seen == Ending("blocked", f"too many leaks. {wanted}")
    assert seen_from_checkout(found, tmp_path) == found

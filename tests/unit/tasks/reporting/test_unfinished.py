"""Which results belong to a run that has not come to its end."""

from pathlib import Path

from tasks.reporting.unfinished import unfinished_stages, without

RESULTS = {
    "schema": 1,
    "sft": {"heldout": {"sft": 0.7}},
    "policies": [{"name": "sft"}, {"name": "r1"}, {"name": "r2"}],
    "reward_models": [{"round": "r1"}, {"round": "r2"}],
    "test": {"policy": "r2"},
    "best_of_n": {"samples": 64},
}


def test_nothing_is_left_out_where_all_stages_are_up_to_date() -> None:
    assert without(RESULTS, ()) == RESULTS


def test_a_round_whose_labels_are_awaited_and_all_after_it_are_left_out() -> None:
    waiting = ["label@r2", "validate@r2", "reward@r2", "ppo@r2", "evaluate@r2", "test", "best_of_n"]

    found = without(RESULTS, waiting)

    assert found["policies"] == [{"name": "sft"}, {"name": "r1"}]
    assert found["reward_models"] == [{"round": "r1"}]
    assert (found["test"], found["best_of_n"]) == (None, None)
    assert (found["schema"], found["sft"]) == (1, RESULTS["sft"])


def test_a_reward_model_is_shown_as_soon_as_it_is_trained() -> None:
    found = without(RESULTS, ["ppo@r2", "evaluate@r2", "test", "best_of_n"])
    assert found["reward_models"] == RESULTS["reward_models"]


def test_sft_and_its_loss_go_with_their_stages() -> None:
    found = without(RESULTS, ["sft", "baseline"])
    assert ("sft" in found, found["policies"][0]["name"]) == (False, "r1")


def test_a_note_of_dvc_that_was_ended_hides_no_unfinished_stage(tmp_path: Path) -> None:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / ".dvc/config").write_text("[core]\n  no_scm = true\n  analytics = false\n")
    (tmp_path / "dvc.yaml").write_text("stages: {sft: {cmd: sft, outs: [models]}}\n")
    # Process 1 lives, and never was DVC's: as where a number is given again.
    note = '{"write": {"%s": {"pid": 1, "cmd": "repro"}}}' % (tmp_path / "models")
    (tmp_path / ".dvc/tmp/rwlock").write_text(note)

    assert unfinished_stages(tmp_path) == {"sft"}

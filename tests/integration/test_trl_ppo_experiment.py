"""`python -m experiments.trl_ppo` without TRL: what it is told, our side, and the page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from experiments import dpo, trl_ppo
from experiments.measuring import FinishedRun, read_run
from tasks.params.loading import load_params
from tests.measured_run import measured_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_run(measured_run(tmp_path_factory.mktemp("trl_ppo") / "run"), key="r1")


@pytest.mark.long
def test_trl_gets_as_many_prompts_as_ours_takes_each_of_them_one_of_the_runs(
    run: FinishedRun,
) -> None:
    found = trl_ppo.order(run, 2e-4)

    lines = (run.root / "data/prepared/prompts/train.jsonl").read_text().splitlines()
    known = {json.loads(line)["prompt"] for line in lines}
    texts = [run.tokenizer.decode(ids, skip_special_tokens=True) for ids in found["prompts"]]
    assert len(set(texts)) == len(texts) <= len(known)
    assert all(any(prompt in text for prompt in known) for text in texts)
    assert found["rate"] == 2e-4
    assert Path(found["reward"], "model.safetensors").is_file()
    ppo = load_params(run.root / "params.yaml").ppo
    assert found["value_rate"] == ppo.value_optimiser.lr != ppo.optimiser.lr
    assert found["options"]["kl_coef"] == ppo.kl_coef
    assert found["options"]["response_length"] == ppo.sampling.max_new_tokens


@pytest.mark.parametrize("experiment", [trl_ppo, dpo])
def test_a_folder_without_a_finished_run_is_named_before_anything_is_trained(
    experiment: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trl_ppo, "make_environment", pytest.fail)
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(ROOT / "params.yaml", begun)
    for folder, missing in ((tmp_path / "none", "params.yaml"), (begun, "models/sft")):
        with pytest.raises(SystemExit) as refused:
            experiment.main([str(folder), "--out", str(tmp_path)])
        assert refused.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{folder} is not a folder in which `make repro` has finished: ")
        assert f"{folder / missing}: no such" in said
        assert said.count("\n") == 1


def test_the_page_is_what_was_recorded() -> None:
    for experiment, name in ((trl_ppo, "trl_ppo"), (dpo, "dpo")):
        found = json.loads((ROOT / f"docs/results/{name}.json").read_text())
        assert experiment.page(found) == (ROOT / f"docs/results/{name}.md").read_text()


@pytest.mark.long
def test_our_side_is_refused_where_it_is_not_what_the_run_has(
    run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then seconds and policy would be of two different trainings."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # The folder of this run has no code.
    root = Path(shutil.copytree(run.root, tmp_path / "run"))
    manifest = root / "models/rounds/r1/policy/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(SystemExit, match=r"models/rounds/r1/policy is not what its run would give"):
        trl_ppo.by_us(replace(run, root=root))


def test_a_page_row_for_each_training_with_the_difference_of_trl_alone() -> None:
    def row(side: str, rate: float, gold: float, less: float) -> dict[str, object]:
        def estimate(mean: float) -> dict[str, float]:
            return {"mean": mean, "low": mean - 1, "high": mean + 1, "n": 10}

        measured = {"gold": gold, "win_rate_vs_sft": 0.5, "kl": 3.0, "less_ppo": less}
        named = {name: estimate(value) for name, value in measured.items()}
        return {"side": side, "seed": 4, "rate": rate, "seconds": 12.4, **named}

    ours_again, again = row("ours", 4e-4, 9.0, 0.0), row("TRL", 2e-4, 7.5, -1.5)
    over = trl_ppo.page(
        [row("ours", 4e-4, 8.0, 0.0), row("TRL", 2e-4, 7.5, -0.5), ours_again, again]
    )
    # -0.5 and -1.5: mean -1, s 0.7071, t 12.706 over the root of 2: 6.353.
    assert "| ours | 0.0004 | 2 | 8.50 | 3.00 | 12 |  |\n" in over
    assert "| TRL | 0.0002 | 2 | 7.50 | 3.00 | 12 | -1.00 [-7.35, 5.35] |\n" in over
    page = trl_ppo.page([row("ours", 4e-4, 8.0, 0.0), row("TRL", 2e-4, 7.5, -0.5)])

    ours, trl = page.strip().splitlines()[-2:]
    assert ours.startswith("| 4 | ours | 0.0004 | 8.00 [7.00, 9.00] |")
    assert ours.endswith("| 12 |  |")
    assert trl.endswith("| 12 | -0.50 [-1.50, 0.50] |")

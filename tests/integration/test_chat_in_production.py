"""`make chat` where a policy is in production: it answers, or one hears why it cannot."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.chatting.policy import ChatError, choose_policy
from tasks.tracking.promotion import Candidate, Decision, decide
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tasks.workspace.dvc_cache import md5, output_hash
from tests import chat_world
from tests.chat_world import asked, chosen

template = pytest.fixture(scope="module")(chat_world.template)
root = pytest.fixture(chat_world.root)


def promote(root: Path, key: str, digest: str) -> Path:
    """Approve a policy as the flow does; where MLflow keeps its weights."""
    store = connect(tracking_uri(root))
    run = store.client.create_run(store.experiment)
    model = store.client.create_logged_model(
        store.experiment, name="policy", source_run_id=run.info.run_id, tags={"dvc.md5": digest}
    )
    store.client.finalize_logged_model(model.model_id, "READY")
    decision = Decision(choice="approve", who="Lea", why="better")
    decide(root, Candidate(round_key=key, digest=digest, model=model), decision)
    location = MlflowClient(tracking_uri(root)).get_logged_model(model.model_id).artifact_location
    return Path(location.removeprefix("file://"))


LAST = ("models/rounds/r2/policy", "models/rounds/r2/policy")


@pytest.mark.long
def test_the_policy_in_production_comes_before_the_last_one(root: Path):
    here = root / "models/rounds/r1/policy"
    assert chosen(root) == (root / LAST[0], LAST[1])
    promote(root, "r1", output_hash(here))
    # Damaged or not: nothing depends on it.
    (root / "dvc.lock").write_text("<<<<<<< HEAD\nstages: {}\n")
    assert chosen(root) == (here, "models/rounds/r1/policy (production, version 1, round r1)")
    named = choose_policy(root, Path("models/sft"), None)
    assert named == (root / "models/sft", "models/sft")


def put_into_cache(root: Path, folder: Path) -> None:
    """As DVC keeps the files of a folder, and the list of them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [{"md5": md5(file), "relpath": file.relative_to(folder).as_posix()} for file in files]
    (root / "listing").write_text(json.dumps(rows))
    listed = (root / "listing", f"{md5(root / 'listing')}.dir")
    for file, name in [*((file, md5(file)) for file in files), listed]:
        cached = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, cached)


@pytest.mark.long
def test_weights_that_were_trained_anew_are_not_taken_for_those_in_production(root: Path):
    here = root / "models/rounds/r1/policy"
    digest, weights = output_hash(here), (here / "model.safetensors").read_bytes()
    kept = promote(root, "r1", digest)
    put_into_cache(root, here)
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    outs:\n"
        f"    - path: models/rounds/r1/policy\n      md5: {digest}\n"
    )
    shutil.rmtree(here)
    shutil.copytree(root / "models/sft", here)

    folder, about = chosen(root)
    assert about.endswith("(production, version 1, round r1)")
    assert (folder / "model.safetensors").read_bytes() == weights

    # A second chat leaves alone what the first one reads by, and mends what leads elsewhere.
    made = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(root / "params.yaml")
    assert chosen(root) == (folder, about)
    anew = [path.name for path in made if path.lstat().st_mtime_ns != made[path]]
    assert anew == ["config.json"]
    assert (folder / "config.json").read_bytes() == (here / "config.json").read_bytes()

    # Nowhere but here: said, rather than another policy.
    shutil.rmtree(root / ".dvc/cache")
    with pytest.raises(ChatError, match=r"weights of version 1, .* `dvc fetch --all-commits`"):
        chosen(root)
    (kept / "model").mkdir(parents=True)
    assert chosen(root)[0] == kept / "model"


@pytest.mark.long
def test_a_policy_from_dvcs_cache_answers(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    here, text = root / "models/rounds/r1/policy", "Sam: where is my parcel?\n"
    expected = asked(monkeypatch, capsys, text, "--policy", "models/rounds/r1/policy")
    promote(root, "r1", output_hash(here))
    put_into_cache(root, here)
    shutil.rmtree(here)

    assert asked(monkeypatch, capsys, text)[:2] == expected[:2]


@pytest.mark.long
def test_a_policy_in_production_is_asked_of_a_store_that_is_not_the_checkouts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a team has it; its weights are kept there, too."""
    (tmp_path / "team").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/team/mlflow.db")
    here = root / "models/rounds/r1/policy"
    kept = promote(root, "r1", output_hash(here)) / "model"
    assert chosen(root)[0] == here

    shutil.copytree(here, kept)
    shutil.rmtree(here)

    assert not kept.is_relative_to(root)
    assert chosen(root) == (kept, f"{kept} (production, version 1, round r1)")

"""Where the policy in production is found, so that a candidate can be compared with it."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from threading import Event, Thread

import pytest
from mlflow.entities.model_registry import ModelVersion, ModelVersionTag

from tasks.promoting.asking import ask, folder_of, weights_at
from tasks.promoting.gate import Limits
from tasks.tracking import promotion
from tasks.tracking.promotion import Candidate, PromotionError

PATH = "models/rounds/r1/policy"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def put(root: Path, name: str, content: bytes) -> None:
    place = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def production(digest: str) -> ModelVersion:
    tags = {"dvc.md5": digest, "dvc.path": PATH, "rlhf.round": "r1"}
    return ModelVersion(
        "rlhf-policy", "7", 0, tags=[ModelVersionTag(*each) for each in tags.items()]
    )


@pytest.fixture
def digest(tmp_path: Path) -> str:
    """The hash of a policy of one file, as DVC makes it, which only DVC's cache has."""
    listing = json.dumps([{"md5": md5(b"weights"), "relpath": "a/model.safetensors"}]).encode()
    put(tmp_path, md5(b"weights"), b"weights")
    put(tmp_path, f"{md5(listing)}.dir", listing)
    return f"{md5(listing)}.dir"


def test_weights_of_the_workspace_come_first_if_they_are_the_same_bytes(
    tmp_path: Path, digest: str
) -> None:
    here = tmp_path / PATH / "a/model.safetensors"
    here.parent.mkdir(parents=True)
    here.write_bytes(b"weights")
    assert folder_of(tmp_path, production(digest)) == tmp_path / PATH
    here.write_bytes(b"trained anew")
    assert folder_of(tmp_path, production(digest)) != tmp_path / PATH


def test_weights_that_only_dvcs_cache_has_are_copied_for_as_long_as_they_are_needed(
    tmp_path: Path, digest: str
) -> None:
    version = production(digest)
    folder = folder_of(tmp_path, version)
    assert not folder.exists()
    with weights_at(tmp_path, folder.as_posix(), version):
        assert (folder / "a/model.safetensors").read_bytes() == b"weights"
    assert not folder.exists()


def test_two_rounds_at_the_gate_do_not_take_the_weights_from_each_other(
    tmp_path: Path, digest: str
) -> None:
    version, found = production(digest), []
    folder = folder_of(tmp_path, version)
    inside, left = Event(), Event()

    def other() -> None:
        with weights_at(tmp_path, folder.as_posix(), version):
            inside.set()
            left.wait()
            found.extend(path.read_bytes() for path in folder.rglob("*.safetensors"))

    with weights_at(tmp_path, folder.as_posix(), version):
        thread = Thread(target=other)
        thread.start()
        inside.wait(0.5)  # Where it does not wait for us, it has begun by then.
    left.set()
    thread.join()
    assert found == [b"weights"]


def test_weights_that_are_in_the_workspace_stay_there(tmp_path: Path, digest: str) -> None:
    here = tmp_path / PATH
    here.mkdir(parents=True)
    with weights_at(tmp_path, here.as_posix(), production(digest)):
        pass
    assert here.is_dir()


def test_weights_that_are_nowhere_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert promotion.in_production(tmp_path) is None
    with pytest.raises(PromotionError, match=r"version 7, .* `dvc fetch --all-commits`"):
        folder_of(tmp_path, production("0a1b.dir"))


ROOT = Path(__file__).resolve().parents[4]
SECOND = Candidate(round_key="r2", digest="0a1b.dir", model=None)  # type: ignore[arg-type]


def test_a_round_that_params_no_longer_have_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    gone = re.sub(r"(?m)^  r2:.*\n(?:    .*\n)*", "", (ROOT / "params.yaml").read_text())
    gone = re.sub(r"(?m)^  r3:.*\n(?:    .*\n)*", "", gone).replace("final: r3", "final: r1")
    (tmp_path / "params.yaml").write_text(gone)
    with pytest.raises(PromotionError) as refused:
        ask(tmp_path, SECOND, Limits())
    assert str(refused.value) == "round r2 is not among the rounds of params.yaml (r1)"


def test_a_file_that_is_not_the_recorded_one_is_named_with_the_command_that_restores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    path = "models/rounds/r2/policy"
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text(
        f"stages: {{ppo@r2: {{outs: [{{path: {path}, md5: 0a1b.dir}}]}}}}\n"
    )
    with pytest.raises(PromotionError) as refused:
        ask(tmp_path, SECOND, Limits())
    assert str(refused.value) == (
        f"{tmp_path / path} is not what dvc.lock records; `dvc checkout --force {path}` restores "
        f"it, or `dvc pull {path}` where the cache lacks it"
    )
    (tmp_path / "data/withdrawn").mkdir(parents=True)
    entry = {"models": [], "objects": [], "outputs": ["0a1b.dir"]}
    (tmp_path / "data/withdrawn/log.jsonl").write_text(json.dumps(entry))
    with pytest.raises(PromotionError) as refused:
        ask(tmp_path, SECOND, Limits())
    assert str(refused.value) == (
        f"{tmp_path / path} is not what dvc.lock records; something was withdrawn from it; run the "
        "pipeline, then ask again"
    )

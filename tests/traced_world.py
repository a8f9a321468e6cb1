"""A pipeline that only pretends to train: files, DVC's cache and dvc.lock as runs leave them.

Each model is a file that says what it is. While the world runs its stages it notes, by itself and
without any hash, which items each model was formed by: the brute force that lineage must equal.
"""

import hashlib
import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Items = frozenset[tuple[str, str]]
"""(kind, id) of what formed a model."""

EMBEDDED = "support desk"
OWN = {"prompts": "mine/asked.jsonl", "demonstrations": "mine/shown.jsonl", "corpus": "mine/read"}
"""Files of one's own, by what `prepare` takes them for."""
KINDS = {"cy": "language_model", "dee": "rubric"}
"""Annotator -> its kind; all others are human."""

START = {
    **dict.fromkeys(("policy", "start", "reward_model"), "models/sft"),
    "preferences": "data/prepared/preferences",
}
"""Where a first round starts from."""


def after(key: str) -> dict[str, str]:
    """Where a round that follows another starts from."""
    return {
        "policy": f"models/rounds/{key}/policy",
        "start": f"models/rounds/{key}/policy",
        "reward_model": f"models/rounds/{key}/reward",
        "preferences": f"data/rounds/{key}/preferences",
    }


class World:
    """A repository with a cache and no outputs checked out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stages: dict[str, dict[str, Any]] = {}
        self.now: dict[str, tuple[str, Items]] = {}
        """Output -> hash and what formed it."""
        self.judges: dict[str, str] = {}
        """Judgment id -> annotator."""
        self.prompts: dict[tuple[str, str], str] = {}
        """(kind, id) -> the prompt it belongs to."""
        self.sources: dict[tuple[str, str], str] = {}
        """(kind, id) -> the kind of annotator, data set or file that it came from."""
        self._tracked: list[str] = []
        (root / ".dvc").mkdir(parents=True)
        self._git("init", "-q", "-b", "main")

    def prepare(
        self,
        prompts: Sequence[str],
        demonstrations: Sequence[str],
        files: Mapping[str, str] | None = None,
        pairs: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write data/prepared: prompts by their texts, and a demonstration for each of some.

        Every second demonstration is a conversation. `pairs` are preferences to train on.
        """
        rows = [{"prompt_id": digest(text), "prompt": text} for text in prompts]
        shown: list[dict[str, Any]] = [
            {"prompt_id": digest(t), "messages": conversation(t)}
            if number % 2
            else {"prompt_id": digest(t), "prompt": t, "response": f"re {t}"}
            for number, t in enumerate(demonstrations)
        ]
        old = {
            side: {"pair_id": digest(f"{side} {prompts[0]}"), "prompt_id": f"{side} {prompts[0]}",
                   "prompt": "p", "chosen": "c", "rejected": "d", "source": "old data"}
            for side in ("train", "heldout")
        }  # fmt: skip
        written = {
            "prompts/train.jsonl": lines(rows),
            "prompts/heldout.jsonl": lines([{"prompt_id": "h", "prompt": "held out"}]),
            "demonstrations.jsonl": lines(shown),
            "corpus.jsonl": lines([{"text": f"document {prompts[0]}"}]),
            **{
                f"preferences/{side}.jsonl": lines([row, *(pairs if side == "train" else ())])
                for side, row in old.items()
            },
        }
        self.prompts |= {("prompt", row["prompt_id"]): row["prompt_id"] for row in rows}
        for row in shown:
            self.prompts["demonstration", demonstration(row)] = row["prompt_id"]
        self.shown = frozenset(("demonstration", demonstration(row)) for row in shown)
        self.asked = frozenset(("prompt", row["prompt_id"]) for row in rows)
        self.documents = frozenset({("document", digest(f"document {prompts[0]}"))})
        self._texts = list(prompts)
        came_from = files or dict.fromkeys(OWN, EMBEDDED)
        for name, items in {
            "prompts": self.asked, "demonstrations": self.shown, "corpus": self.documents
        }.items():  # fmt: skip
            self.sources |= dict.fromkeys(items, came_from[name])
        params = {"prepare": {"files": files}}
        self._ran("prepare", [], {"data/prepared": written}, frozenset(), params)
        inner = folder({name[12:]: put(self.root, text) for name, text in written.items()
                        if name.startswith("preferences/")})  # fmt: skip
        rows_of_pairs = [*old.values(), *pairs]
        items = {("preference", row["pair_id"]): row["prompt_id"] for row in rows_of_pairs}
        self.prompts |= items
        self.sources |= dict.fromkeys(items, "old data")
        self.now["data/prepared/preferences"] = (inner, frozenset(items))

    def start(self, note: str = "", *, taken: bool = False) -> None:
        """Train base, or take it from somewhere, and train SFT."""
        formed: Items = frozenset() if taken else self.documents | self.shown
        params = {"base": {"model": "somewhere"}} if taken else {}
        self._ran("base", ["data/prepared"], {"models/base": {"m": f"base {note}"}}, formed, params)
        formed = self.now["models/base"][1] | self.shown
        deps = ["data/prepared", "models/base"]
        self._ran("sft", deps, {"models/sft": {"m": f"sft {note}"}}, formed)

    def label(
        self, key: str, settings: Mapping[str, str], judges: Sequence[str], note: str
    ) -> None:
        """Sample and label a round: one pair for each prompt, one judge for each pair."""
        comparisons, judgments = [], []
        for number, text in enumerate(self._texts):
            pair = digest(f"{key} {text} {note}")
            comparisons.append(
                {
                    "pair_id": pair,
                    "prompt_id": digest(text),
                    "prompt": text,
                    "response_a": f"{note} a",
                }
            )
            name = judges[number % len(judges)]
            one = digest(f"{pair} {name}")
            self.judges[one] = name
            self.sources["judgment", one] = kind = KINDS.get(name, "human")
            self.prompts["judgment", one] = digest(text)
            judgments.append(
                {"judgment_id": one, "pair_id": pair, "round": key, "annotator_id": name,
                 "kind": kind, "choice": "a", "revision": 1}
            )  # fmt: skip
        where = f"data/rounds/{key}"
        deps = ["data/prepared", "models/sft", settings["policy"], settings["preferences"]]
        formed = self._all(deps) | self.asked
        self._ran(f"sample@{key}", deps, {f"{where}/comparisons.jsonl": lines(comparisons)}, formed)
        deps = [f"{where}/comparisons.jsonl"]
        formed = self._all(deps) | {("judgment", row["judgment_id"]) for row in judgments}
        self._ran(f"label@{key}", deps, {f"{where}/judgments.jsonl": lines(judgments)}, formed)
        self._pairs = [row["pair_id"] for row in comparisons]

    def validate(self, key: str, settings: Mapping[str, str]) -> None:
        """Turn the judgments of the round into preferences; the last pair is quarantined."""
        where = f"data/rounds/{key}"
        train = lines([{"pair_id": pair, "chosen": "x"} for pair in self._pairs[:-2]])
        heldout = lines([{"pair_id": pair, "chosen": "x"} for pair in self._pairs[-2:-1]])
        deps = [f"{where}/comparisons.jsonl", f"{where}/judgments.jsonl", settings["preferences"]]
        out = {f"{where}/preferences": {"train.jsonl": train, "heldout.jsonl": heldout}}
        self._ran(f"validate@{key}", ["data/prepared", "models/sft", *deps], out, self._all(deps))

    def train(self, key: str, settings: Mapping[str, str], note: str) -> None:
        """Train the reward model and the policy of a round."""
        models = f"models/rounds/{key}"
        deps = ["models/sft", settings["reward_model"], f"data/rounds/{key}/preferences"]
        self._ran(
            f"reward@{key}", deps, {f"{models}/reward": {"m": f"reward {note}"}}, self._all(deps)
        )
        deps = ["data/prepared", "models/sft", settings["start"], f"{models}/reward"]
        formed = self._all(deps) | self.asked
        self._ran(f"ppo@{key}", deps, {f"{models}/policy": {"m": f"policy {note}"}}, formed)

    def round(
        self, key: str, settings: Mapping[str, str], judges: Sequence[str], note: str
    ) -> None:
        """A whole round."""
        self.label(key, settings, judges, note)
        self.validate(key, settings)
        self.train(key, settings, note)

    def measure(
        self, key: str, files: Mapping[str, str], code: Mapping[str, str] | None = None
    ) -> None:
        """Evaluate the policy of a round, by code: path -> text."""
        for path, text in (code or {}).items():
            self.now[path] = (put(self.root, text), frozenset())
        deps = [f"models/rounds/{key}/policy", *(code or {})]
        self._ran(f"evaluate@{key}", deps, {f"results/evaluate/{key}": files}, self._all(deps))

    def track(self, name: str) -> None:
        """Have git track a file from the next commit on."""
        self._tracked.append(name)

    def commit(self, tag: str | None = None) -> str:
        """Commit dvc.lock and tracked files; the commit's hash."""
        self._git("add", "dvc.lock", *self._tracked)
        self._git("commit", "-q", "-m", "Record a run")
        if tag is not None:
            self._git("tag", tag)
        return self.commit_hash()

    def commit_hash(self) -> str:
        """Of what is checked out."""
        return self._git("rev-parse", "HEAD")

    def switch(self, name: str) -> None:
        """Check out a commit, or a new branch; what this world noted stays."""
        new = not self._git("rev-parse", "--verify", "-q", name, check=False)
        self._git("switch", "-q", *(["-c"] if new else ["--detach"]), name)

    def merge_nothing_of(self, branch: str) -> None:
        """Merge a branch, keep our files, and remove its name."""
        self._git("merge", "-q", "-s", "ours", "-m", "Merge", branch)
        self._git("branch", "-q", "-D", branch)

    def _all(self, deps: Sequence[str]) -> Items:
        return frozenset(item for dep in deps for item in self.now[dep][1])

    def _ran(
        self,
        stage: str,
        deps: Sequence[str],
        outs: Mapping[str, Any],
        formed: Items,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        for path, content in outs.items():
            if isinstance(content, str):
                known = put(self.root, content)
            else:
                known = folder({name: put(self.root, text) for name, text in content.items()})
                listing = {name: put(self.root, text) for name, text in content.items()}
                object_path(self.root, known).parent.mkdir(parents=True, exist_ok=True)
                object_path(self.root, known).write_text(listing_text(listing))
            self.now[path] = (known, formed)
        entry = {
            "cmd": f"python -m tasks.{stage}",
            "deps": [{"path": dep, "md5": self.now[dep][0]} for dep in sorted(set(deps))],
            "outs": [{"path": out, "md5": self.now[out][0]} for out in outs],
            "params": {"params.yaml": dict(params or {})},
        }
        self.stages[stage] = entry
        with (self.root / "dvc.lock").open("w", encoding="utf-8") as stream:
            YAML().dump({"schema": "2.0", "stages": self.stages}, stream)

    def _git(self, *arguments: str, check: bool = True) -> str:
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        return subprocess.run(
            ["git", "-C", str(self.root), *who, *arguments],
            check=check, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip


def one_round(root: Path, *judges: str) -> World:
    """Four prompts, a demonstration for the first, and a round that these people judged."""
    world = World(root)
    world.prepare(["one", "two", "three", "four"], ["one"])
    world.start()
    world.round("r1", START, judges, "first")
    return world


def random_world(root: Path, seed: int) -> World:
    """Rounds that start from any earlier model, some run again, some labelled again and left so."""
    drawing = random.Random(seed)
    world = World(root)
    world.prepare([f"prompt {n}" for n in range(5)], ["prompt 1", "prompt 7"])
    world.start()
    policies, rewards, data = ["models/sft"], ["models/sft"], ["data/prepared/preferences"]
    for number in range(1, 5):
        key = f"r{number}"
        settings = {
            "policy": drawing.choice(policies),
            "start": drawing.choice(policies),
            "reward_model": drawing.choice(rewards),
            "preferences": drawing.choice(data),
        }
        world.round(key, settings, drawing.sample(["ann", "bo", "cy"], 2), "first")
        world.commit()
        if drawing.random() < 0.5:
            world.label(key, settings, ["dee"], "again")
            world.validate(key, settings)
            world.commit()
        if drawing.random() < 0.3:
            world.prepare([f"own {n}" for n in range(number, number + 5)], ["own 8"], OWN)
            world.commit()
        policies.append(f"models/rounds/{key}/policy")
        rewards.append(f"models/rounds/{key}/reward")
        data.append(f"data/rounds/{key}/preferences")
    return world


def digest(text: str) -> str:
    """16 digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def conversation(text: str) -> list[dict[str, str]]:
    """A text, answered and asked again."""
    said = (text, "what?", text, f"re {text}")
    roles = ("user", "assistant") * 2
    return [{"role": role, "content": one} for role, one in zip(roles, said, strict=True)]


def demonstration(row: Mapping[str, Any]) -> str:
    """A demonstration's id: that of its compact JSON."""
    said = row["messages"] if "messages" in row else [row["prompt"], row["response"]]
    return digest(json.dumps(said, separators=(",", ":")))


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(root: Path, text: str) -> str:
    """Put a file into DVC's cache; its hash."""
    known = hashlib.md5(text.encode()).hexdigest()
    object_path(root, known).parent.mkdir(parents=True, exist_ok=True)
    object_path(root, known).write_text(text)
    return known


def folder(files: Mapping[str, str]) -> str:
    """DVC's hash of a folder."""
    return hashlib.md5(listing_text(files).encode()).hexdigest() + ".dir"


def listing_text(files: Mapping[str, str]) -> str:
    """What DVC writes about a folder."""
    return json.dumps([{"md5": files[name], "relpath": name} for name in sorted(files)])


def object_path(root: Path, known: str) -> Path:
    """Where the cache keeps it."""
    return root / ".dvc/cache/files/md5" / known[:2] / known[2:]

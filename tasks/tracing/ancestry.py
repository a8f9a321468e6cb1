"""The way from a model back to what formed it, and from one item forward to the models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.tracing.contents import ContentError, Contents
from tasks.tracing.items import PREPARED, Item, Part, files_of, items_of, parts_of
from tasks.tracing.records import Ran, RecordError, Records

SHORTEST_HASH = 7
MADE = (PREPARED, "data/rounds", "models")
"""Where stages write what others learn from; anything else is code, or a file that people wrote."""


@dataclass(frozen=True, slots=True)
class Model:
    """A trained model: a policy, a reward model, or the models before the first round."""

    path: str
    digest: str


class Ancestry:
    """What was made from what, at one revision; files are read once."""

    def __init__(self, root: Path, revision: str | None = None) -> None:
        """Reads the records of the revision, None for the workspace.

        Raises:
            RecordError: there is no such revision, or nothing has run there.
        """
        self.contents = Contents(root)
        self.records = Records(root, self.contents, revision)
        self._parts: dict[Model, tuple[Part, ...]] = {}

    def model(self, name: str) -> Model:
        """The model of this name: a round (its policy), `sft`, `final`, a path, or a hash.

        Raises:
            RecordError: there is none; lists those that there are.
        """
        models = self.records.models()
        for path in (name, f"models/{name}", f"models/rounds/{name}/policy"):
            if path in models:
                return Model(path, models[path])
        if name == "final" and (final := self.records.params().get("final")):
            return self.model(str(final))
        if len(name) >= SHORTEST_HASH:
            for digest, path in self.records.all_models().items():
                if digest.startswith(name):
                    return Model(path, digest)
        raise RecordError(f"{name}: no model of this name; there are {', '.join(models)}")

    def models(self) -> list[Model]:
        """All models of the revision, in the order of the stages."""
        return [Model(path, digest) for path, digest in self.records.models().items()]

    def all_models(self) -> list[Model]:
        """Those of the revision, then those that only other commits of any branch name."""
        ours = self.models()
        known = {model.digest for model in ours}
        everywhere = self.records.all_models().items()
        return ours + [Model(path, digest) for digest, path in everywhere if digest not in known]

    def parts(self, model: Model) -> tuple[Part, ...]:
        """The files that formed a model, each as the stage that learnt from it read it.

        Raises:
            RecordError: no record says what the model was made from.
            ContentError: the list of a folder's files is not on this machine.
        """
        if model not in self._parts:
            runs = list(self.runs(model))
            found = [part for ran in runs for part in parts_of(ran, self._prepared_by(ran))]
            # Runs come nearest first; a list reads better from the beginning.
            self._parts[model] = tuple(dict.fromkeys(reversed(found)))
        return self._parts[model]

    def items(self, model: Model) -> Iterator[Item]:
        """Every judgment, preference, demonstration, prompt and document that formed a model.

        Raises:
            RecordError: no record says what the model was made from.
            ContentError: a file is not on this machine.
        """
        for part in self.parts(model):
            yield from items_of(part, self.contents)

    def files(self, part: Part) -> list[str]:
        """The hashes of the files of a part.

        Raises:
            ContentError: the list of a folder's files is not on this machine.
        """
        return files_of(part, self.contents)

    def formed_by(
        self, models: list[Model], wanted: Callable[[Item], bool]
    ) -> tuple[dict[Model, list[Item]], dict[Model, str]]:
        """The items that are wanted, by each of the models that they formed.

        And the models of which nobody can say: no record says what they were made from, or a file
        is not on this machine; with the reason.
        """
        found: dict[Part, list[Item]] = {}
        formed: dict[Model, list[Item]] = {}
        untraceable: dict[Model, str] = {}
        for model in models:
            try:
                parts = self.parts(model)
                for part in parts:
                    if part not in found:
                        found[part] = [one for one in items_of(part, self.contents) if wanted(one)]
            except (RecordError, ContentError) as error:
                untraceable[model] = str(error)
                continue
            if items := [item for part in parts for item in found[part]]:
                formed[model] = items
        return formed, untraceable

    def runs(self, model: Model) -> Iterator[Ran]:
        """The runs of stages that a model came from, the nearest first.

        Raises:
            RecordError: no record says what the model was made from.
            ContentError: the list of a folder's files is not on this machine.
        """
        first = self.records.writer(model.path, model.digest)
        if first is None:
            raise RecordError(f"{model.path} with md5 {model.digest}: no stage writes it")
        todo, seen = [first], [first]
        while todo:
            ran = todo.pop(0)
            yield ran
            for path, digest in ran.deps.items():
                if not path.startswith(MADE):
                    continue
                before = self.records.writer(path, digest)
                if before is not None and before not in seen:
                    seen.append(before)
                    todo.append(before)

    def _prepared_by(self, ran: Ran) -> Ran | None:
        if PREPARED not in ran.deps:
            return None
        return self.records.writer(PREPARED, ran.deps[PREPARED])

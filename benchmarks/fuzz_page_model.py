"""What one person at the labelling page has done, as the page has to see it.

The model of `benchmarks.fuzz_page_steps`. It knows only what the browser is shown, and nothing of
the store: a prompt that comes under a second assignment is a repeat, one that nobody published is a
known item.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fuzz_page_store import hold

REACH = 10
"""Pairs whose answers can be undone: those answered first most lately."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A pair as the page showed it."""

    prompt: str
    left: str
    right: str


@dataclass(slots=True)
class Worker:
    """A person, in all their browsers."""

    name: str
    rounds: Collection[str]
    """Prompts of all pairs that may be published."""
    paused: bool = False
    held: str | None = None
    """The assignment that they are to answer."""
    shown: dict[str, Shown] = field(default_factory=dict)
    standing: dict[str, str] = field(default_factory=dict)
    """What was chosen: a text, or the name of a choice; the newest answer last."""
    answered: list[str] = field(default_factory=list)
    """Assignments by their first answers."""
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Assignment and choice of every submission and undo."""

    def refuses(self, assignment: str, choice: str, key: str, active: Collection[str]) -> bool:
        """Whether this answer must be refused."""
        if key in self.keys:
            return self.keys[key] != (assignment, choice)
        return self.paused or assignment in self.standing or not self._in_round(assignment, active)

    def may_be_late(self, assignment: str) -> bool:
        """Whether somebody else may have taken the pair."""
        return assignment != self.held

    def submitted(self, assignment: str, choice: str, key: str, *, fresh: bool) -> None:
        """An answer was accepted."""
        hold(fresh == (key not in self.keys), f"{self.name}: fresh is {fresh} for {key}")
        if not fresh:
            return
        self.keys[key] = (assignment, choice)
        self.standing[assignment] = self._text(assignment, choice)
        if assignment not in self.answered:
            self.answered.append(assignment)
        if assignment == self.held:
            self.held = None

    def undoes(self, key: str) -> str | None:
        """The assignment whose answer an undo must take back; None: nothing."""
        near = [one for one in self.standing if one in self.answered[-REACH:]]
        return None if key in self.keys or not near else near[-1]

    def undo_is_refused(self, key: str, active: Collection[str]) -> bool:
        """Whether this undo must be refused."""
        target = self.undoes(key)
        return self.paused or (target is not None and not self._in_round(target, active))

    def undone(self, key: str, *, done: bool) -> None:
        """An undo was accepted; sent again, it gets the reply that it had."""
        target = self.undoes(key)
        expected = target is not None or key in self.keys
        hold(done == expected, f"{self.name}: undone is {done}, expected {target}")
        if target is not None:
            self.keys[key] = (target, "withdrawn")
            del self.standing[target]
            self.held = target

    def stop(self) -> None:
        """They were paused; their open pair goes to others."""
        self.paused, self.held = True, None

    def published(self, active: Collection[str]) -> None:
        """A round has other pairs now; an open one that it lacks is closed."""
        if self.held is not None and not self._in_round(self.held, active):
            self.held = None

    def sees(self, view: dict[str, Any], active: Collection[str]) -> str | None:
        """Checks what the page shows next; returns the assignment."""
        hold((view["state"] == "paused") == self.paused, f"{self.name}: {view['state']}")
        hold(view["mine"] == len(self.standing), f"{self.name}: {view['mine']} of {self.standing}")
        if view["state"] != "pair":
            hold(self.held is None, f"{self.name}: {view['state']}, but {self.held} is open")
            return None
        task = view["task"]
        this = task["assignment_id"]
        hold(self.held in (None, this), f"{self.name}: {this}, but {self.held} is open")
        hold(this not in self.standing, f"{self.name}: {this} again, which is answered")
        now = Shown(task["prompt_raw"], task["left_raw"], task["right_raw"])
        hold(self.shown.setdefault(this, now) == now, f"{self.name}: {this} with other sides")
        hold(self._in_round(this, active), f"{self.name}: {now}, which no round contains")
        others = [one for key, one in self.shown.items() if key != this]
        before = [one for one in others if one.prompt == now.prompt]
        hold(before in ([], [Shown(now.prompt, now.right, now.left)]), f"{self.name}: {before}")
        self.held = this
        return str(this)

    def expected(self, active: Collection[str]) -> set[tuple[str, str, str]]:
        """Name, prompt and choice of what an export has of this person."""
        firsts: dict[str, str] = {}
        for this, pair in self.shown.items():
            firsts.setdefault(pair.prompt, this)
        return {
            (self.name, prompt, self.standing[this])
            for prompt, this in firsts.items()
            if this in self.standing and prompt in active
        }

    def _in_round(self, assignment: str, active: Collection[str]) -> bool:
        prompt = self.shown[assignment].prompt
        return prompt in active or prompt not in self.rounds

    def _text(self, assignment: str, choice: str) -> str:
        pair = self.shown[assignment]
        return {"left": pair.left, "right": pair.right}.get(choice, choice)

"""The three pictures of the labelling page in docs/labelling.md, from the pairs of a checkout.

    python -m tests.browser.labelling_pictures CHECKOUT FOLDER

writes pair.png, phone.png and overview.png into FOLDER. The checkout has the first round of the
default run (make repro). Four simulated people have judged its pairs, one of them always the left
side. Needs Chromium and its driver (apt-get install chromium chromium-driver).
"""

import math
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from feedback.judgments import Pair, read_pairs
from feedback.store import assignments, database, gold, submissions
from tasks.scoring.gold import gold_scores
from tests.browser.conftest import Site
from tests.browser.labelling import fit, press, sign_in
from tests.integration.camera import Camera, camera

PEOPLE = {"ben": 130, "cleo": 104, "dan": 110, "eva": 82}
"""Name -> answers; dan prefers the left."""
PAIRS, KNOWN, OVERLAP = 220, 12, 2


def main(checkout: Path, folder: Path) -> None:
    """Fill a store, serve the page over it, and keep what it shows."""
    os.environ["SCREENSHOTS"] = str(folder)
    pairs = read_pairs(checkout / "data/rounds/r1/comparisons.jsonl")[: PAIRS + KNOWN]
    better = {pair.pair_id: _better(pair) for pair in pairs}
    known = sorted(pairs, key=lambda pair: -abs(better[pair.pair_id]))[:KNOWN]
    with tempfile.TemporaryDirectory() as scratch:
        site = Site(Path(scratch))
        for name in PEOPLE:
            site.token(name)
        site.publish([pair for pair in pairs if pair not in known], overlap=OVERLAP)
        right = [(pair, "a" if better[pair.pair_id] > 0 else "b") for pair in known]
        with site.database.writing() as connection:
            gold.publish_gold(connection, Path("known"), right)
        judge(site, better)
        site.start()
        try:
            with camera() as pictures:
                assert pictures is not None
                take(pictures, site)
        finally:
            site.kill()
            site.database.close()


def judge(site: Site, better: dict[str, float]) -> None:
    """Have each person answer, seconds of a clock of their own after they were served."""
    draws, params = random.Random(0), assignments.ServeParams(gold_rate=0.15, repeat_rate=0.05)
    clock, begun = [0], database._running_ms()
    database._running_ms = lambda: begun + clock[0]
    waiting = [name for name, count in PEOPLE.items() for _ in range(count)]
    draws.shuffle(waiting)
    for number, name in enumerate(waiting):
        with site.database.writing() as connection:
            task = assignments.next_task(connection, name, params)
            if task is None:
                continue
            took = round(1000 * draws.lognormvariate(math.log(8), 0.4))
            clock[0] += took
            given = submissions.Submission(
                assignment_id=task.assignment_id,
                choice=_choice(name, task, better, draws),
                strength=draws.randint(2, 4),
                reason=None,
                visible_ms=took,
                key=f"key-{number}",
                guideline_hash="",
            )
            submissions.submit(connection, name, given)


def take(pictures: Camera, site: Site) -> None:
    """Take a pair with a chosen side, the same page on a phone, and what a lead sees."""
    browser = pictures.browser
    for name, width, height in (("pair", 1280, 757), ("phone", 390, 844)):
        fit(browser, width, height)
        sign_in(browser, site, "ana")
        if name == "pair":
            press(browser, "\ue014")
        pictures.keep(name)
    fit(browser, 1280, 900)
    sign_in(browser, site, "lea", "lead")
    pictures.take("overview", f"{site.address}/lead", "Agreement", "dan")
    whole = browser.execute_script("return document.documentElement.scrollHeight")
    fit(browser, 1280, whole)
    pictures.keep("overview")


def _better(pair: Pair) -> float:
    """Gold of the first response less that of the second."""
    found = gold_scores(
        [pair.prompt, pair.prompt],
        [pair.response_a, pair.response_b],
        [pair.finished_a, pair.finished_b],
    )
    assert found is not None
    return found[0] - found[1]


def _choice(name: str, task: Any, better: dict[str, float], draws: random.Random) -> str:
    if name == "dan" and draws.random() < 0.9:
        return "left"
    noise = math.log(1 / draws.uniform(1e-6, 1 - 1e-6) - 1)
    first = better[task.pair.pair_id] + noise > 0
    return "left" if first != task.swap else "right"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())

"""Stages of one folder run one after the other, and one that was killed holds nobody up."""

import re
import time

from tests.unit.tasks.running.conftest import HANG, LINUX, PATIENCE_SECONDS, Workplace
from tests.waiting import eventually, waits_for_a_lock


@LINUX
def test_two_stages_at_once_run_one_after_the_other(place: Workplace):
    noting = (
        "with open('order.txt', 'a', buffering=1) as order:\n"
        "    order.write('begin\\n')\n"
        "    while not Path('end').exists(): time.sleep(0.1)\n"
        "    order.write('end\\n')"
    )
    processes = [place.start(noting), place.start(noting, arguments="name='other'")]
    eventually((place.root / "order.txt").exists)
    eventually(lambda: any(waits_for_a_lock(process.pid) for process in processes))
    time.sleep(1.5)  # The stage tells of a wait of more than a second.
    (place.root / "end").touch()
    said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    order = (place.root / "order.txt").read_text().split()
    assert order == ["begin", "end", "begin", "end"]
    assert len(re.findall(r"(?:probe|other) waited \d+ s for another stage to end", "".join(said)))


def test_the_lock_of_a_stage_that_was_killed_holds_nobody_up(place: Workplace):
    process = place.start(HANG)
    eventually((place.root / "started").exists)
    process.kill()
    process.wait()

    assert place.run("")[0] == 0
    assert place.output() == ["half.txt", "whole.txt"]

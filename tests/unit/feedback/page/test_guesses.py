"""How long who guesses has to wait, and how much of it is written down."""

import logging

from feedback.page.guesses import FORGOTTEN_S, FREE, LONGEST_S, Guesses
from feedback.page.running import LogLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_doubles_from_the_sixth_wrong_token_to_a_minute() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    waits = []
    for _ in range(FREE + 8):
        guesses.wrong("10.0.0.1")
        waits.append(guesses.wait_s("10.0.0.1"))
        clock.now += waits[-1]
    assert waits == [0] * (FREE - 1) + [1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S, LONGEST_S]
    assert guesses.wait_s("10.0.0.2") == 0


def test_addresses_of_one_ipv6_network_are_one() -> None:
    guesses = Guesses(Clock())
    for number in range(FREE):
        guesses.wrong(f"2001:db8:1:2::{number:x}")
    assert guesses.wait_s("2001:db8:1:2:ffff::1") == 1
    assert guesses.wait_s("2001:db8:1:3::1") == 0


def test_ipv4_addresses_that_a_socket_of_ipv6_gives_are_each_their_own() -> None:
    guesses = Guesses(Clock())
    for _ in range(FREE):
        guesses.wrong("::ffff:10.0.0.1")
    assert (guesses.wait_s("::ffff:10.0.0.1"), guesses.wait_s("10.0.0.1")) == (1, 1)
    assert guesses.wait_s("::ffff:10.0.0.2") == 0


def test_who_has_stopped_is_forgotten_and_the_memory_is_bounded() -> None:
    clock = Clock()
    guesses = Guesses(clock, most=100)
    for _ in range(FREE):
        guesses.wrong("10.0.0.1")
    clock.now += FORGOTTEN_S + 1
    guesses.wrong("10.0.0.1")
    assert guesses.wait_s("10.0.0.1") == 0
    for number in range(1000):
        guesses.wrong(f"10.1.{number // 250}.{number % 250}")
    assert len(guesses) <= 100
    # Those who tried last, or a machine with many addresses would never have to wait.
    for _ in range(FREE):
        guesses.wrong("10.2.0.1")
    assert guesses.wait_s("10.2.0.1") == 1


def test_a_flood_of_log_lines_is_cut_and_counted() -> None:
    clock = Clock()
    limit = LogLimit(30, clock)
    shown = []

    def log(text: str) -> None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, None, None)
        if limit.filter(record):
            shown.append(record.getMessage())

    for number in range(1000):
        log(f"line {number}")
    assert shown == [f"line {number}" for number in range(30)]
    clock.now += 61
    log("after")
    assert shown[30] == "after (970 lines were left out before this one)"
    log("again")
    assert shown[31] == "again"
    # The second minute has a limit, too, and so have those after it.
    for number in range(100):
        clock.now += 0.1
        log(f"line {number}")
    assert len(shown) == 2 * 30

"""When the signals that ask a stage to end interrupt it, and when they wait or do nothing."""

import os
import signal

import pytest

from tasks.running.signals import LAUNCHED_BY, Signals, outer_signals_restored


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(name="terminal", autouse=True)
def terminal_fixture():
    """Tests in the background ignore what comes with the end of a terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_interrupts_at_once_outside_of_training_and_asks_inside(number):
    signals = Signals()
    with signals.heard():
        with signals.patient():
            send(number)
            assert signals.asked
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_a_second_ctrl_c_leaves_at_once_and_a_second_sigterm_is_the_same_request():
    signals = Signals()
    with signals.heard(), signals.patient():
        send(signal.SIGINT)
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_after_a_ctrl_c_there_is_no_limit_until_a_sigterm_sets_one(capfd):
    signals = Signals("ppo@r1")
    with signals.heard(), signals.patient():
        send(signal.SIGINT)
        assert signals.asked
        assert not 0 < signal.alarm(0) <= 8  # pytest's own limit is longer.
        assert capfd.readouterr().err.startswith("ppo@r1 will end after the current step")
        send(signal.SIGTERM)
        assert 0 < signal.alarm(0) <= 8


def test_a_step_that_takes_too_long_is_given_up():
    signals = Signals()
    with signals.heard(), signals.patient():
        send(signal.SIGTERM)
        assert 0 < signal.alarm(0) <= 8
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGALRM)


def test_only_a_step_is_given_up_and_no_checkpoint():
    signals = Signals()
    with signals.heard(), signals.patient():
        send(signal.SIGTERM)
        signals.step_has_ended()
        assert signal.alarm(0) == 0
        send(signal.SIGTERM)
        assert signal.alarm(0) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_once_interrupted_a_stage_hears_no_further_one_until_its_end_is_recorded(number):
    before, unwound = signal.getsignal(number), []

    def work() -> None:
        with Signals().heard():
            try:
                send(number)
            finally:
                send(number)
                unwound.append(True)

    with outer_signals_restored():
        with pytest.raises(KeyboardInterrupt):
            work()
        send(number)  # while its outcome is written
        assert unwound
    assert signal.getsignal(number) == before


def test_what_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    with signals.heard(), signals.patient():
        send(signal.SIGHUP)
        assert not signals.asked


def test_once_its_training_has_failed_a_stage_hears_no_sigterm_until_that_is_recorded():
    """A launcher sends one as soon as another of the stage's processes has died."""
    before, unwound = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        signals = Signals()
        with signals.heard():
            try:
                with signals.patient():
                    raise RuntimeError
            finally:
                send(signal.SIGTERM)
                unwound.append(True)

    with outer_signals_restored():
        with pytest.raises((RuntimeError, KeyboardInterrupt)) as raised:
            work()
        assert raised.type is RuntimeError
        send(signal.SIGTERM)  # while its outcome is written
        assert unwound
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_death_of_another_process_ends_all_but_training_and_is_no_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LAUNCHED_BY, str(os.getppid()))
    signals = Signals()

    def work() -> None:
        with signals.heard():
            with signals.patient():
                send(signal.SIGUSR2)
            assert not signals.asked
            send(signal.SIGUSR2)

    with outer_signals_restored():
        with pytest.raises(KeyboardInterrupt):
            work()
        send(signal.SIGUSR2)  # while its outcome is written
    assert signals.end == (
        "failed", "another of the stage's processes has ended; run it again to resume"
    )  # fmt: skip


def test_handlers_and_alarm_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signals = Signals()
    with signals.heard(), signals.patient():
        send(signal.SIGTERM)

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert signal.alarm(0) == 0

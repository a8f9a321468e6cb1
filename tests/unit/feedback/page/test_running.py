"""Which signals stop the page."""

import signal

import pytest

from feedback.page.running import stopped_by_signals


@pytest.mark.parametrize(("before", "ends"), [(signal.SIG_IGN, False), (signal.SIG_DFL, True)])
def test_who_starts_the_page_with_nohup_may_close_the_terminal(
    before: signal.Handlers, ends: bool
) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    ended = False
    try:
        signal.signal(signal.SIGHUP, before)
        try:
            with stopped_by_signals():
                signal.raise_signal(signal.SIGHUP)
        except KeyboardInterrupt:
            ended = True
        # As it was for what runs afterwards.
        after = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert ended == ends
    assert after == [before, kept[signal.SIGTERM]]

"""Which signals stop the page."""

import signal

import pytest

from feedback.page.running import stopped_by_signals


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_who_starts_the_page_with_nohup_may_close_the_terminal(before: signal.Handlers) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, before)
        if before == signal.SIG_IGN:
            with stopped_by_signals():
                signal.raise_signal(signal.SIGHUP)
        else:
            with pytest.raises(KeyboardInterrupt), stopped_by_signals():
                signal.raise_signal(signal.SIGHUP)
        # As it was for what runs afterwards.
        assert signal.getsignal(signal.SIGHUP) == before
        assert signal.getsignal(signal.SIGTERM) == kept[signal.SIGTERM]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)

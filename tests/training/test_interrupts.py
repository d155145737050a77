"""A signal waits until no step is half done; a second one does not."""

from __future__ import annotations

import os
import signal

import pytest

from seqgc.training.session import Interrupts
from tests.kit import interrupts


def test_a_signal_waits_and_a_second_one_does_not() -> None:
    gate, reached = Interrupts(), list[str]()
    with interrupts(), gate.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("step")
        with pytest.raises(KeyboardInterrupt):
            gate.admit()
        gate.hold()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert reached


def test_handlers_are_as_before_unless_one_of_them_chose_another() -> None:
    def last(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)

    with interrupts():
        with Interrupts().deferred():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts(last):
        gate = Interrupts()
        with gate.deferred():
            gate.admit()
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

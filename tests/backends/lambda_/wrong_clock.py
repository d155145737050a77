"""A function imports it at its start: from then on its clock is wrong."""

from __future__ import annotations

import os
import time

VARIABLE = "TEST_CLOCK_AHEAD_S"


def _set() -> None:
    right, ahead_s = time.time, float(os.environ[VARIABLE])
    time.time = lambda: right() + ahead_s
    print("by a wrong clock")


if VARIABLE in os.environ:
    _set()

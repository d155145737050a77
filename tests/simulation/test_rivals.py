"""Two masters, or three, on one run: only one of them gets anywhere."""

from __future__ import annotations

from unittest import mock

import pytest

from seqgc.schemes import parse_scheme
from tests.kit import SOAK
from tests.simulation.faults import SPECS, TABLES, Scenario
from tests.simulation.rivals import compete
from tests.simulation.seams import Lease

pytestmark = pytest.mark.timeout(0 if SOAK else 180)


# Whose late answers are of use, the ledger of one master among several cannot tell.
_SPECS = [spec for spec in SPECS if getattr(parse_scheme(spec, n=4), "late", "drop") == "drop"]


def schedule(seed: int) -> Scenario:
    return Scenario(
        seed=seed,
        spec=_SPECS[seed % len(_SPECS)],
        delays=seed % TABLES,
        checkpoint_every_s=[2.0, 9.0, 1e9][seed % 3],
        faults=(),
    )


def test_where_locks_are_kept_every_other_master_is_refused() -> None:
    """Row 3: nothing is sent and no line is written by any other than the one at work."""
    for seed in range(500 if SOAK else 2):
        assert compete(schedule(seed), locks=True).fault is None, seed


def test_one_who_does_not_look_at_its_number_is_found() -> None:
    with mock.patch.object(Lease, "lost", return_value=""):
        assert any(compete(schedule(seed), locks=False).fault for seed in range(20))

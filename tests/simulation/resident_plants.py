"""Bugs to be planted in functions that stay, and in their master's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest import mock

from tests.simulation.seams import resident, staying, switchboard

_Plant = Callable[[], AbstractContextManager[object]]
_EVER: Final = 10**6  # beats


def _any_proof() -> AbstractContextManager[object]:
    hmac = SimpleNamespace(new=staying.hmac.new, compare_digest=lambda *_: True)
    return mock.patch.object(staying, "hmac", hmac)


def _calls_of_all_masters() -> AbstractContextManager[object]:
    known: dict[bytes, tuple[int, bytes]] = {}
    kept = property(lambda _: known, lambda *_: None)
    return mock.patch.object(switchboard.Switchboard, "_expected", kept, create=True)


def _nothing_failed(_: Any, *__: object, **___: object) -> None:
    pass


RESIDENT_PLANTS: Final[Mapping[str, _Plant]] = MappingProxyType(
    {
        "any proof is one": _any_proof,
        "calls of earlier masters are answered": _calls_of_all_masters,
        "functions that are silent are kept": lambda: mock.patch.object(
            resident, "_LOST_BEATS", _EVER
        ),
        "functions wait for their master for ever": lambda: mock.patch.object(
            staying, "_PATIENCE_BEATS", _EVER
        ),
        "what a lost function owed is forgotten": lambda: mock.patch.object(
            resident.ResidentBackend, "_fail", _nothing_failed
        ),
    }
)

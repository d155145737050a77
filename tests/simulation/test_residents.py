"""Functions that stay in whole runs, whatever goes wrong; and who is let in to their master."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.lambda_.parts import Switchboard
from tests.kit import SOAK
from tests.simulation.draws import DRAWS
from tests.simulation.faults import Scenario
from tests.simulation.functions import Account
from tests.simulation.ledger import Ledger
from tests.simulation.network import End
from tests.simulation.plants import FOUND_IN
from tests.simulation.resident_plants import RESIDENT_PLANTS
from tests.simulation.residents import PORT, Stranger
from tests.simulation.runs import simulate
from tests.simulation.search import failures, report
from tests.simulation.world import World

SEEDS = 1000 if SOAK else 4
CALL, TOKEN, NONCE = b"c" * 16, b"t" * 32, b"n" * 32
BEATS = 5
# Seeds that find each bug.
QUICK = {
    "any proof is one": 7,
    "calls of earlier masters are answered": 9,
    "functions that are silent are kept": 18,
    "functions wait for their master for ever": 3,
    "what a lost function owed is forgotten": 0,
}


@pytest.mark.timeout(0 if SOAK else 120)
def test_rounds_on_functions_that_stay_lose_nothing() -> None:
    for seed, _ in failures(range(SEEDS), draw=DRAWS["staying"]):
        pytest.fail(report(seed, draw="staying"))


def test_the_same_seed_has_the_same_events_though_there_are_threads() -> None:
    scenario = DRAWS["dealt-staying"](3)
    first, second = simulate(scenario), simulate(scenario)
    assert (first.digest, first.masters) == (second.digest, second.masters)


@pytest.mark.parametrize("plant", sorted(RESIDENT_PLANTS))
def test_a_bug_planted_in_functions_that_stay_is_found(plant: str) -> None:
    seeds = range(1000) if SOAK else (QUICK[plant],)
    found = next(failures(seeds, plant=plant, draw=DRAWS[FOUND_IN[plant]]), None)
    assert found is not None
    assert found[1].startswith("Violation"), f"{plant!r} is itself broken: {found[1]}"


# ---- strangers, in virtual time ------------------------------------------------------------------


class _Caller:
    """Calls a master; says what it must, as soon as it can, if it knows the token."""

    def __init__(self, account: Account, *, token: bytes | None) -> None:
        residents = account.residents
        self._account, self._token = account, token
        self.is_in, self.end = False, residents.network.connect(self._process(account), PORT)
        self.end.attach(None, self)
        if token is not None:
            self.end.write(b"SGCR\x01\x00" + CALL + NONCE)

    @staticmethod
    def _process(account: Account) -> Stranger:
        return Stranger(account.residents.threads, CALL)

    def connection_made(self, _: object) -> None:
        """Nothing is said before the hello."""

    def data_received(self, data: bytes) -> None:
        assert self._token is not None
        about = b"function" + CALL + NONCE + data[:32]
        self.end.write(hmac.new(self._token, about, "sha256").digest())

    def connection_lost(self, _: object) -> None:
        """So be it."""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    scenario = Scenario(seed=0, spec="", delays=0, checkpoint_every_s=1e9, faults=())
    world = World(scenario)
    account = Account(world, Ledger(world), tmp_path)
    yield account
    account.residents.close()


def listening(account: Account) -> Switchboard:
    account.residents.network.watch = lambda _: None
    return Switchboard(
        account.residents.address.listener(),
        tls=None,
        beat_s=1.0,
        patience=BEATS,
        clock=account,
        on_news=lambda: None,
    )


def starve(account: Account, end: End, *, of: int) -> None:
    """Let time pass until the master has been sent so much, and then a minute in which it is not
    given a processor."""
    account.wait(1.0, lambda: end.said >= of)
    account.world.clock.at += 60.0


def test_a_master_that_gets_no_processor_for_minutes_lets_its_function_in(account: Account) -> None:
    with account.residents.at_home():
        board = listening(account)
        board.expect(3, call=CALL, token=TOKEN)
        caller = _Caller(account, token=TOKEN)
        for said in (54, 54 + 32):
            starve(account, caller.end, of=said)
        account.wait(2.0, lambda: caller.end.other.said > 64)  # a beat
        assert not caller.end.closed
        board.close()


def test_who_proves_nothing_is_hung_up_on_after_some_beats(account: Account) -> None:
    with account.residents.at_home():
        board = listening(account)
        caller = _Caller(account, token=None)
        account.wait(BEATS - 0.5, lambda: caller.end.closed)
        assert not caller.end.closed
        account.wait(2.0, lambda: caller.end.closed)
        assert caller.end.closed
        board.close()

"""`SerialBackendContract`: what backends promise whose workers take one task after the other."""

from __future__ import annotations

from pathlib import Path

from seqgc.testing._clock import eventually
from seqgc.testing.backends import BackendContract, Open
from seqgc.testing.scripted import address, next_event, next_events, task

__all__ = ["SerialBackendContract"]


class SerialBackendContract(BackendContract):
    """The same, where a worker takes one task after the other and hears when one is cancelled."""

    def test_a_cancelled_answer_that_waits_for_its_time_is_never_sent(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = open_backend(1, delays=lambda round, _: (0.0, 0.5, 0.0, 0.5)[round])
        for round, model in enumerate(("gate a", "plain", "gate b")):
            backend.dispatch(round, [task(round, 0, model)])
        (folder / "go a").touch()
        eventually((folder / "begun b").exists, "round 2's computing")  # so round 1 is computed
        backend.cancel(1, [0])
        backend.dispatch(3, [task(3, 0)])  # due after round 1 would have been
        (folder / "go b").touch()
        assert [event.round for event in next_events(backend, 3)] == [0, 2, 3]

    def test_mini_tasks_of_a_cancelled_round_are_not_begun(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "gate first", "gate second")])
        eventually((folder / "begun first").exists, "the first mini-task")
        backend.dispatch(1, [task(1, 0, "gate queued")])
        backend.cancel(0, [0])
        backend.cancel(1, [0])
        backend.dispatch(2, [task(2, 0)])
        (folder / "go first").touch()
        assert address(next_event(backend)) == ("Arrival", 2, 0, 0)
        assert not (folder / "begun second").exists()
        assert not (folder / "begun queued").exists()

    def test_a_straggler_that_fails_once_it_is_cancelled_is_no_failure(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "gate-raise a")])
        eventually((folder / "begun a").exists, "round 0's computing")
        backend.cancel(0, [0])
        (folder / "go a").touch()
        backend.dispatch(1, [task(1, 0)])
        assert address(next_event(backend)) == ("Arrival", 1, 0, 0)  # after the other, in order
        backend.dispatch(2, [task(2, 0, "raise")])  # and what is not cancelled fails as ever
        assert address(next_event(backend)) == ("Failure", 2, 0, 0)

    def test_an_answer_sent_before_its_round_was_cancelled_arrives(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0)])
        backend.dispatch(1, [task(1, 0, "gate a")])
        eventually((folder / "begun a").exists, "round 1's computing")
        backend.cancel(0, [0])
        (folder / "go a").touch()
        assert [event.round for event in next_events(backend, 2)] == [0, 1]

"""The decisions of a policy as text, to compare those of two runs."""

from __future__ import annotations

from collections.abc import Iterable

from seqgc.ports import Action, Close, Dispatch, Drop, Event, Finish, Policy, Seen, Update


def decided(seen: Iterable[Seen]) -> list[str]:
    """Return a line for each action of a run."""
    return [_line(each) for each in seen if isinstance(each, Action)]


def decided_again(policy: Policy, seen: Iterable[Seen]) -> list[str]:
    """Return a line for each action with which another policy answers the events of a run."""
    lines = decided(policy.start())
    for each in seen:
        if isinstance(each, Event):
            lines += decided(policy.on(each))  # a decoding is available only at once
    return lines


def _line(action: Action) -> str:
    match action:
        case Dispatch(round=round, attempt=attempt, assignment=assignment):
            tasks = {
                worker: [(t.job, t.cover, t.chunks.tolist()) for t in own]
                for worker, own in assignment.items()
            }
            return f"send {tasks} in {round}, attempt {attempt}"
        case Close(record=record, jobs=jobs):
            return f"close {jobs}, {record.duration_s!r} s, by {record.responded.tolist()}"
        case Update(decoding=decoding):
            return f"apply {decoding()}"
        case Finish(job=job, decoding=decoding):
            return f"finish {job}, {decoding()}"
        case Drop(event=event, reason=reason):
            return f"drop {event.round}, {event.worker}: {reason}"
        case _:
            return repr(action)

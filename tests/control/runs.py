"""Runs of controllers in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqgc.master import run
from seqgc.ports import Close, Restart, RoundRecord, Seen
from seqgc.profiles import Pace
from seqgc.rounds import RunPolicy, Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.virtual import VirtualBackend


@dataclass(frozen=True, kw_only=True)
class Virtual:
    """What has become of a run."""

    policy: RunPolicy
    records: list[RoundRecord]
    restarts: list[tuple[int, int]]  # after how many rounds, and who
    seconds: float

    @property
    def round_seconds(self) -> list[float]:
        """How long each round took."""
        return [record.duration_s for record in self.records]

    @property
    def shares(self) -> list[tuple[int, list[int]]]:
        """From which round on, which shares."""
        segments = self.policy.segments  # type: ignore[attr-defined]
        return [(part.first_round, part.setting.scheme.parts.tolist()) for part in segments]


def virtual(
    spec: str, pace: Pace, *, num_jobs: int, batches: Sequence[int] = (), restart_s: float = 0.0
) -> Virtual:
    """Run a defence on workers of a pace."""
    records: list[RoundRecord] = []
    restarts: list[tuple[int, int]] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Close):
            records.append(seen.record)
        elif isinstance(seen, Restart):
            restarts.append((len(records), seen.worker))

    setting = Setting(scheme=parse_scheme(spec, n=pace.n))
    policy = policy_of(setting, num_jobs=num_jobs, batches=batches)
    backend = VirtualBackend(pace.n, pace, restart_s=restart_s)
    run(policy, backend, observe=watch)
    return Virtual(policy=policy, records=records, restarts=restarts, seconds=backend.now)

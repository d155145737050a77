"""The loop and the policy of a live run that deals, on recorded times.

Source: docs/mathematics.md, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqgc import master
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.rounds import DealingPolicy, Setting
from seqgc.schemes import Deal
from seqgc.search._outcome import Recorder, Replay
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._virtual_workers import VirtualWorkers
from seqgc.virtual import VirtualBackend

__all__ = ["DealtRun", "deal"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DealtRun:
    """What a run that deals its work comes to on recorded times.

    ``computed_load`` are the batches that workers have begun to compute for each that was asked
    for: 1, and the copies. ``billed_worker_s`` are worker-seconds of all invocations, idle ones
    included.
    """

    replay: Replay
    computed_load: float
    billed_worker_s: float


def deal(setting: Setting, rehearsal: Rehearsal, *, silent_s: FloatArray | None = None) -> DealtRun:
    """Run a `Deal` on recorded delays, as the rehearsal's reading has it.

    ``silent_s`` (rounds, n): so many seconds after it was invoked a worker stops, and the master is
    not told. It has no effect if delays are read as speeds, because no worker is invoked then.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    """
    jobs, in_flight = rehearsal.bundles(setting), rehearsal.in_flight(setting)
    if not isinstance(setting.scheme, Deal):
        raise ParameterError("scheme", "must be one that deals its work", setting.scheme.spec)
    scheme = setting.scheme.fitted(in_flight)
    shares, empty = scheme.chunk_fractions, None
    if rehearsal.batch is not None:
        sizes = scheme.cut(rehearsal.batch)
        shares, empty = sizes / rehearsal.batch, sizes == 0
    workers: VirtualBackend | VirtualWorkers
    if rehearsal.recorded == "speed":  # each worker takes one piece after the other
        pace = rehearsal.pace(jobs_per_round=setting.jobs_per_round)
        workers = VirtualBackend(scheme.n, pace, message_s=rehearsal.rtt_s / 2)
    else:
        before_s, after_s = rehearsal.reading.split(rehearsal.latencies(setting))
        work_s = rehearsal.slope * setting.jobs_per_round * shares
        workers = VirtualWorkers(
            before_s, after_s=after_s, work_s=work_s, rtt_s=rehearsal.rtt_s, silent_s=silent_s
        )
    policy = DealingPolicy(
        scheme,
        setting.rule,
        num_jobs=jobs,
        in_flight=in_flight,
        greet="once" if rehearsal.reading.resident else "rounds",
        empty=empty,
    )
    recorder = Recorder()
    master.run(policy, workers, observe=recorder)
    if isinstance(workers, VirtualBackend):
        computed_load = float(workers.done.sum()) / jobs
        billed_worker_s = scheme.n * workers.now
    else:
        asked_s = jobs * work_s.sum()
        computed_load = float(workers.worked_s / asked_s) if asked_s else 1.0
        billed_worker_s = workers.billed_s
    return DealtRun(
        replay=recorder.replay(),
        computed_load=computed_load,
        billed_worker_s=billed_worker_s,
    )

"""The bytes that AgileML's three stages move, and the time of an iteration that follows from them.

python -m experiments.agileml.run [--output FOLDER]

Source: Harlap, "Improving ML applications in shared computing environments" (PhD thesis, Carnegie
Mellon University, 2019), sections 4.2.2 (the stages) and 4.5.3 (Figures 4.10 to 4.13). README.md
says what is modelled, and to which two numbers of the thesis the model is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scipy.optimize import brentq

from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS

MACHINES = 64  # a unit of time is the computation of an iteration on as many machines
SLOWED = 1.85  # stage 1 with 4 of 64 machines reliable, relative to traditional (4.2.2)
STRAGGLING = 1.18  # stage 2 with 4 of 64 machines reliable and 32 ActivePSs (4.5.3)
FIELDS = ("figure", "stage", "reliable", "transient", "servers", "summed", "overlapped")
RELIABLE = (1, 2, 4, 8, 16, 32)

Stage = Literal["traditional", "1", "2", "3"]
Clock = Literal["summed", "overlapped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The parts of AgileML that run on one kind of machine."""

    worker: bool = False
    server: bool = False  # a shard that serves workers: a ParamServ or an ActivePS
    backup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines of a run; ``servers`` is the number of ParamServs, or of ActivePSs."""

    stage: Stage
    reliable: int
    transient: int
    servers: int

    @property
    def workers(self) -> int:
        """The number of machines with workers."""
        return self.transient + (0 if self.stage == "3" else self.reliable)

    @property
    def pushes(self) -> bool:
        """True if servers send their updates to backups."""
        return self.stage in ("2", "3")

    @property
    def kinds(self) -> list[Machine]:
        """The kinds of machines that exist."""
        if not self.pushes:
            serving = Machine(worker=True, server=True)
            return [serving, Machine(worker=True)] if self.transient else [serving]
        idle = [Machine(worker=True)] if self.transient > self.servers else []
        reliable = Machine(worker=self.stage == "2", backup=True)
        return [Machine(worker=True, server=True), *idle, reliable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes of an iteration, as seconds on a machine's link, in units of computation.

    A worker reads ``worker`` and sends as much. All servers together push ``model`` to the backups.
    """

    worker: float
    model: float

    def link(self, machine: Machine, cluster: Cluster) -> float:
        """Return the time that a machine's link is busy in its busier direction."""
        incoming = outgoing = 0.0
        if machine.worker:  # with all shards that are not on its own machine
            remote = self.worker * (cluster.servers - machine.server) / cluster.servers
            incoming, outgoing = incoming + remote, outgoing + remote
        if machine.server:
            served = self.worker * (cluster.workers - machine.worker) / cluster.servers
            incoming, outgoing = incoming + served, outgoing + served
            if cluster.pushes:
                outgoing += self.model / cluster.servers
        if machine.backup:
            incoming += self.model / cluster.reliable
        return max(incoming, outgoing)

    def iteration(self, cluster: Cluster, clock: Clock) -> float:
        """Return the time of the slowest machine."""
        times = []
        for machine in cluster.kinds:
            computing = MACHINES / cluster.workers if machine.worker else 0.0
            moving = self.link(machine, cluster)
            times.append(computing + moving if clock == "summed" else max(computing, moving))
        return max(times)

    def slowdown(self, cluster: Cluster, clock: Clock) -> float:
        """Return the time relative to as many reliable machines that all work and all serve."""
        n = cluster.reliable + cluster.transient
        traditional = Cluster(stage="traditional", reliable=n, transient=0, servers=n)
        return self.iteration(cluster, clock) / self.iteration(traditional, clock)


def stage(number: Stage, *, reliable: int, transient: int, active: int | None = None) -> Cluster:
    """Return a cluster; half of all machines run ActivePSs, unless ``active`` says otherwise."""
    half = min(transient, (reliable + transient) // 2)
    servers = reliable if number in ("traditional", "1") else active or half
    return Cluster(stage=number, reliable=reliable, transient=transient, servers=servers)


def fitted(clock: Clock) -> Traffic:
    """Return the traffic with which stages 1 and 2 are as slow as the thesis says, at 60 to 4."""

    def too_slow(cluster: Cluster, traffic: Traffic, slowdown: float) -> float:
        return traffic.slowdown(cluster, clock) - slowdown

    first, second = (stage(each, reliable=4, transient=60) for each in ("1", "2"))
    worker = brentq(lambda v: too_slow(first, Traffic(worker=v, model=0.0), SLOWED), 0.0, 1.0)
    model = brentq(lambda m: too_slow(second, Traffic(worker=worker, model=m), STRAGGLING), 0.0, 99)
    return Traffic(worker=float(worker), model=float(model))


FIGURES = {
    "4.10": [
        *(stage("1", reliable=r, transient=MACHINES - r) for r in (4, 8, 16, 32)),
        stage("traditional", reliable=MACHINES, transient=0),
    ],
    "4.11": [stage("2", reliable=4, transient=60, active=each) for each in (16, 32, 60)],
    "4.12": [stage(each, reliable=1, transient=63) for each in ("2", "3")],
    "4.13": [stage(each, reliable=8, transient=8) for each in ("2", "3")],
    "stages": [
        stage(each, reliable=r, transient=MACHINES - r)
        for each in ("1", "2", "3")
        for r in RELIABLE
    ],
}


def slowdowns(number: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one of the `FIGURES`."""
    summed, overlapped = fitted("summed"), fitted("overlapped")
    for cluster in FIGURES[number]:
        yield {
            "figure": number,
            "stage": cluster.stage,
            "reliable": cluster.reliable,
            "transient": cluster.transient,
            "servers": cluster.servers,
            "summed": f"{summed.slowdown(cluster, 'summed'):.3f}",
            "overlapped": f"{overlapped.slowdown(cluster, 'overlapped'):.3f}",
        }


def tables(folder: Path) -> Table:
    """Make the table, as far as it is missing."""
    table = Table(folder / "slowdowns.csv", FIELDS, keys=1)
    for number in FIGURES:
        if (number,) not in table:
            table.append(slowdowns(number))
    return table


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    rows = [row for row in tables(folder).rows() if row["figure"] == "stages"]
    clocks: tuple[Clock, ...] = "summed", "overlapped"
    for clock in clocks:
        print(clock, fitted(clock))
    picture = figure(width=9.6, height=3.8)
    places, labels = range(len(RELIABLE)), [f"{(MACHINES - r) // r}:1" for r in RELIABLE]
    for ax, clock in zip(picture.subplots(1, 2, sharey=True), clocks, strict=True):
        for color, number in zip(COLORS, ("1", "2", "3"), strict=False):
            mine = [float(row[clock]) for row in rows if row["stage"] == number]
            ax.plot(places, mine, "o-", color=color, markersize=4, label=f"stage {number}")
        ax.set_xticks(places, labels)
        ax.set(title=f"computation and traffic {clock}", yscale="log")
        ax.set(xlabel="transient to reliable machines, of 64")
        ax.set_yticks([1, 1.5, 2, 3, 4, 6, 8], ["1", "1.5", "2", "3", "4", "6", "8"])
        ax.set_yticks([], minor=True)
    first = picture.axes[0]
    first.set_ylabel("time of an iteration, relative to 64 reliable")
    first.legend(frameon=False)
    save(picture, folder / "slowdowns.svg")


if __name__ == "__main__":
    main()

"""What BidBrain would pay on the spot market, billed as in 2016 and as today.

python -m experiments.proteus.run [TRACE.json ...] [--output FOLDER] [--starts N] [--seed SEED]

Source: Harlap, "Improving ML applications in shared computing environments" (PhD thesis, Carnegie
Mellon University, 2019), sections 4.3 (equations 4.1 to 4.4) and 4.5.2. README.md says what is
modelled, and which numbers the thesis does not state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.proteus.traces import HOUR, Market, made_up, read
from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS

CORES = 512  # 128 c4.xlarge, or 64 c4.2xlarge (4.5.1)
RELIABLE = 12  # cores that are rented on demand for the parameters: three c4.xlarge (Fig. 4.1)
LARGEST = 189 * 4  # cores on the spot market: 63 to each reliable machine (Fig. 4.1)
BLOCK = 63 * 4  # cores of an allocation
PHI = 0.95  # speed of elastic workers, relative to as many that stay
BOOT = 3  # minutes until a new machine works
SIGMA = 0.1  # minutes that all elastic workers lose by an addition ("no disruption", 4.5.5)
LAMBDA = 1.0  # minutes that all elastic workers lose by an eviction
CHECKPOINTS = 1.17  # time with checkpoints, relative to without (4.5.2)
INTERVAL = 15.0  # minutes of work between checkpoints
TRAINING = 0.58  # share of a trace from which eviction rates are estimated: 89 of 154 days
BIDS = np.geomspace(0.0001, 0.4, 9)  # above the market price, in dollars (4.3.1)
DELTAS = np.append(BIDS, [1.0, 3.0, 10.0])  # at which eviction rates are estimated
FIELDS = ("prices", "billing", "hours", "strategy", "cost", "time", "free", "evictions", "runs")

MARKERS = "osD^v"

Billing = Literal["hourly-2016", "per-second"]
BILLINGS: tuple[Billing, ...] = ("hourly-2016", "per-second")


class Rates:
    """How likely, and how soon, a machine of a market is evicted within an hour (4.3.1)."""

    def __init__(self, market: Market, minutes: int) -> None:
        prices = market.prices[:minutes]
        begin = np.arange(0, minutes - HOUR, 5)
        begin = begin[prices[begin] <= market.on_demand]
        first = np.full((len(DELTAS), len(begin)), np.inf)
        bids = prices[begin] + DELTAS[:, None]
        for minute in range(HOUR, 0, -1):
            first[prices[begin + minute] > bids] = minute
        evicted = np.isfinite(first)
        self._beta = evicted.mean(axis=1)
        self._median = np.array(
            [np.median(f[e]) if e.any() else HOUR for f, e in zip(first, evicted, strict=True)]
        )
        self._log = np.log(DELTAS)

    def __call__(self, delta: float, minutes: float) -> tuple[float, float]:
        """Return the probability of an eviction within ``minutes``, and its median time."""
        at = np.log(max(delta, DELTAS[0]))
        beta = 1 - (1 - float(np.interp(at, self._log, self._beta))) ** (minutes / HOUR)
        return beta, min(minutes, float(np.interp(at, self._log, self._median)))


@dataclass(slots=True, kw_only=True)
class Allocation:
    """Machines of one type that were rented at the same minute with the same bid."""

    market: Market
    count: int
    bid: float
    begin: int
    paid: float = 0.0  # dollars that an eviction would refund
    worked: float = 0.0  # core hours since then

    @property
    def cores(self) -> int:
        return self.count * self.market.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The terms of equations 4.1 to 4.3 for one allocation, until its billing hour ends."""

    cores: float  # k ν
    cost: float  # C_A, equation 4.1
    minutes: float  # ω
    beta: float


def cost_per_work(footprint: Sequence[Expected], changing: bool) -> float:
    """Return E_A, equation 4.4, in dollars for a core hour."""
    evicted = 1 - float(np.prod([1 - each.beta for each in footprint]))
    lost = evicted * LAMBDA + (SIGMA if changing else 0.0)
    work = PHI * sum(each.cores * max(0.0, each.minutes - lost) / HOUR for each in footprint)
    return sum(each.cost for each in footprint) / work if work > 0 else np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to rent machines, and whether workers are elastic or restart from checkpoints."""

    name: str
    elastic: bool
    cores: int
    brain: bool = False

    @property
    def speed(self) -> float:
        return PHI if self.elastic else 1 / CHECKPOINTS


STRATEGIES = (
    Strategy(name="cheapest, checkpoints", elastic=False, cores=CORES),
    Strategy(name="cheapest, elastic", elastic=True, cores=CORES),
    Strategy(name="cheapest, elastic, 189 machines", elastic=True, cores=LARGEST),
    Strategy(name="BidBrain", elastic=True, cores=LARGEST, brain=True),
)


@dataclass(slots=True, kw_only=True)
class Job:
    """A job of ``work`` core hours on the spot market of one zone, minute by minute."""

    markets: Sequence[Market]
    rates: Mapping[str, Rates]  # by type
    strategy: Strategy
    billing: Billing
    reliable_usd: float  # dollars an hour of the machines that are rented on demand
    start: int
    work: float
    now: int = 0
    cost: float = 0.0
    done: float = 0.0
    saved: float = 0.0
    stalled: float = 0.0
    free: float = 0.0
    total: float = 0.0
    evictions: int = 0
    rented: list[Allocation] = field(default_factory=list)

    def run(self) -> Job:
        """Run until the work is done, or until prices end (`Job.finished`)."""
        self.now = self.start
        while not self.finished and self.now < len(self.markets[0].prices) - HOUR:
            self._evict()
            self._renew()
            if self.strategy.brain:
                if (self.now - self.start) % 2 == 0:
                    self._bid()
            elif not self.rented:
                self._cheapest()
            self._advance()
            self.now += 1
        for each in self.rented:
            self._return(each)
        if self.strategy.elastic:
            self.cost += self.reliable_usd * (self.now - self.start) / HOUR
        return self

    @property
    def finished(self) -> bool:
        return self.done >= self.work

    def _price(self, market: Market) -> float:
        return float(market.prices[self.now])

    def _rent(self, market: Market, bid: float, cores: int) -> None:
        each = Allocation(market=market, count=cores // market.cores, bid=bid, begin=self.now)
        self.rented.append(each)
        self._pay(each)

    def _pay(self, each: Allocation) -> None:
        """Begin an hour of an allocation; in 2016, it is paid now."""
        each.paid = each.worked = 0.0
        if self.billing == "hourly-2016":
            each.paid = each.count * self._price(each.market)
            self.cost += each.paid

    def _evict(self) -> None:
        for each in [each for each in self.rented if self._price(each.market) > each.bid]:
            self.rented.remove(each)
            self.evictions += 1
            if each.paid and self._age(each) % HOUR:  # a complete hour is not refunded
                self.cost -= each.paid
                self.free += each.worked
            if self.strategy.elastic:
                self.stalled = LAMBDA
            elif self.billing == "hourly-2016":  # today's warning is enough for a checkpoint
                self.done = self.saved

    def _renew(self) -> None:
        for each in [e for e in self.rented if e.begin < self.now and self._age(e) % HOUR == 0]:
            if self.strategy.brain:
                others = [self._expect(other) for other in self.rented if other is not each]
                with_it = cost_per_work([*others, self._expect(each), self._stays()], False)
                if cost_per_work([*others, self._stays()], True) < with_it:
                    self.rented.remove(each)
                    continue
            self._pay(each)

    def _return(self, each: Allocation) -> None:
        """Leave the rest of a paid hour, and its possible refund, to the next job (4.4, 4.5.2)."""
        begin = self.now - self._age(each) % HOUR
        if self.billing == "per-second" or begin == self.now:  # no hour has begun
            return
        if (each.market.prices[self.now : begin + HOUR] > each.bid).any():
            self.cost -= each.paid
            self.free += each.worked
        else:
            self.cost -= each.paid * (begin + HOUR - self.now) / HOUR

    def _age(self, each: Allocation) -> int:
        return self.now - each.begin

    def _cheapest(self) -> None:
        """Rent the type with the cheapest cores, and bid its on-demand price (4.5.2)."""
        offers = [m for m in self.markets if self._price(m) <= m.on_demand]
        if offers:
            best = min(offers, key=lambda market: self._price(market) / market.cores)
            self._rent(best, best.on_demand, self.strategy.cores)

    def _stays(self) -> Expected:
        """Return the terms of the machines rented on demand, which do no work (Fig. 4.5)."""
        minutes = HOUR - (self.now - self.start) % HOUR
        cost = self.reliable_usd * minutes / HOUR
        return Expected(cores=0, cost=cost, minutes=minutes, beta=0.0)

    def _expect(self, each: Allocation) -> Expected:
        """Return the terms of equations 4.1 to 4.3; the price is that of the present hour."""
        minutes = HOUR - self._age(each) % HOUR
        price = self._price(each.market)
        if self.billing == "hourly-2016" and minutes < HOUR:
            price = each.paid / each.count
        beta, median = self.rates[each.market.kind](each.bid - self._price(each.market), minutes)
        refunded = self.billing == "hourly-2016" or self._age(each) < HOUR
        return Expected(
            cores=each.cores,
            cost=(1 - beta * refunded) * price * each.count * minutes / HOUR,
            minutes=(1 - beta) * minutes + beta * median - max(0, BOOT - self._age(each)),
            beta=beta,
        )

    def _bid(self) -> None:
        """Rent the allocation that lowers the cost per work most, if one does (4.3.2)."""
        room = self.strategy.cores - sum(each.cores for each in self.rented)
        if room < BLOCK // 2:
            return
        present = [self._stays(), *map(self._expect, self.rented)]
        best, least = None, cost_per_work(present, False)
        for market in self.markets:
            price = self._price(market)
            if price > market.on_demand:
                continue
            count = min(room, BLOCK) // market.cores
            bids = price + BIDS if self.billing == "hourly-2016" else [market.on_demand]
            for bid in bids:
                offer = Allocation(market=market, count=count, bid=float(bid), begin=self.now)
                cost = cost_per_work([*present, self._expect(offer)], True)
                if cost < least:
                    best, least = offer, cost
        if best is not None:
            self._rent(best.market, best.bid, best.cores)

    def _advance(self) -> None:
        """Let a minute pass."""
        if self.strategy.elastic and any(self._age(each) == BOOT for each in self.rented):
            self.stalled += SIGMA
        working = max(0.0, 1 - self.stalled)
        self.stalled = max(0.0, self.stalled - 1)
        for each in self.rented:
            if self.billing == "per-second":
                usd = each.count * self._price(each.market) / HOUR
                self.cost += usd
                each.paid += usd if self._age(each) < HOUR else 0.0  # free if evicted in this hour
            if self._age(each) >= BOOT:
                work = each.cores * working * self.strategy.speed / HOUR
                each.worked += work
                self.done += work
                self.total += work
        if self.done - self.saved >= self.strategy.speed * self.strategy.cores * INTERVAL / HOUR:
            self.saved = self.done


def judged(
    markets: Sequence[Market], hours: float, billing: Billing, *, starts: int, seed: int
) -> Iterator[tuple[Strategy, list[Job], float]]:
    """Yield the jobs of each strategy, and what they cost on demand, in dollars.

    All strategies have the same starts: random minutes after those of the estimated rates.
    """
    minutes = len(markets[0].prices)
    training, last = int(TRAINING * minutes), minutes - int(3 * hours * HOUR)
    if last <= training:
        msg = (
            f"prices of {minutes / HOUR:.0f} hours are too few for jobs of {hours} hours; "
            f"{3 * hours / (1 - TRAINING):.0f} are needed"
        )
        raise ValueError(msg)
    core_usd = min(market.on_demand / market.cores for market in markets)
    zones: dict[str, list[Market]] = {}
    for market in markets:
        zones.setdefault(market.zone, []).append(market)
    rates = {zone: {m.kind: Rates(m, training) for m in there} for zone, there in zones.items()}
    for strategy in STRATEGIES:
        jobs = []
        rng = np.random.default_rng(seed)
        for zone, there in zones.items():
            for start in rng.integers(training, last, starts):
                job = Job(
                    markets=there,
                    rates=rates[zone],
                    strategy=strategy,
                    billing=billing,
                    reliable_usd=RELIABLE * core_usd,
                    start=int(start),
                    work=CORES * hours,
                )
                jobs.append(job.run())
        yield strategy, jobs, core_usd * CORES * hours


def rows(
    name: str, markets: Sequence[Market], billing: Billing, hours: int, *, starts: int, seed: int
) -> Iterator[dict[str, object]]:
    """Yield a row for each strategy: means relative to on demand; ``free`` is a share of work."""
    for strategy, jobs, usd in judged(markets, hours, billing, starts=starts, seed=seed):
        finished = [job for job in jobs if job.finished]
        yield {
            "prices": name,
            "billing": billing,
            "hours": hours,
            "strategy": strategy.name,
            "cost": f"{np.mean([job.cost for job in finished]) / usd:.3f}",
            "time": f"{np.mean([job.now - job.start for job in finished]) / HOUR / hours:.3f}",
            "free": f"{sum(job.free for job in jobs) / sum(job.total for job in jobs):.3f}",
            "evictions": f"{np.mean([job.evictions for job in jobs]):.1f}",
            "runs": len(finished),
        }


def draw(table: Table, path: Path) -> None:
    """Draw cost against time of the jobs of 20 hours."""
    picture = figure(width=9.6, height=3.8)
    drawn = [row for row in table.rows() if row["hours"] == "20"]
    names = list(dict.fromkeys(row["prices"] for row in drawn))
    left, right = picture.subplots(1, 2, sharey=True)
    for row in drawn:
        ax = left if row["billing"] == BILLINGS[0] else right
        color = COLORS[[strategy.name for strategy in STRATEGIES].index(row["strategy"])]
        marker = MARKERS[names.index(row["prices"])]
        ax.plot(float(row["time"]), float(row["cost"]), marker, color=color)
    for ax, billing in zip((left, right), BILLINGS, strict=True):
        ax.set(title=billing, xlabel="time, relative to on demand")
    for strategy, color in zip(STRATEGIES, COLORS, strict=False):
        left.plot([], [], "o", color=color, label=strategy.name)
    for name, marker in zip(names, MARKERS, strict=False):
        right.plot([], [], marker, color="gray", label=name)
    left.set(ylabel="cost, relative to on demand", ylim=(0, None))
    left.legend(frameon=False, loc="lower left")
    right.legend(frameon=False, loc="lower left")
    save(picture, path)


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    traces = "Files of `aws ec2 describe-spot-price-history`; without any, made-up prices."
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE.json", help=traces)
    starts = "Number of jobs in each zone, at random times. (default: %(default)s)"
    parser.add_argument("--starts", type=int, default=50, help=starts)
    seed = "Seed of the made-up prices and of the times. (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=seed)
    args = parser.parse_args()
    name = "+".join(path.stem for path in args.traces) or f"made-up-{args.seed}"
    markets = read(args.traces) if args.traces else made_up(args.seed)
    table = Table(args.output / "spot.csv", FIELDS, keys=3)
    for billing in BILLINGS:
        for hours in (2, 20):
            if (name, billing, hours) not in table:
                table.append(
                    rows(name, markets, billing, hours, starts=args.starts, seed=args.seed)
                )
    draw(table, args.output / "spot.svg")


if __name__ == "__main__":
    main()

"""Every exact scheme with every parameter set of a small size."""

from __future__ import annotations

from collections.abc import Iterator

from seqgc.errors import ParameterError
from seqgc.schemes import Scheme, by_rounds, parse_scheme, registered
from tests.kit import SOAK


def all_specs(n: int, largest_window: int) -> Iterator[str]:
    """Specs with every parameter in its widest conceivable range; many are invalid."""
    for name, entry in registered().items():
        if not entry.kind.__module__.startswith("seqgc."):
            continue  # an example that another test has loaded
        if not issubclass(entry.kind, Scheme):
            continue
        if not entry.required:
            yield name
        elif entry.required == ["s", "q", "r"]:
            yield from (
                f"{name}:s={s},q=0.5,r={r}{more}"
                for s in range(n)
                for r, more in ((1, ""), (2, ",p=2"), (2, ",late=drop"))
            )
        elif entry.required == ["s"]:
            yield from (f"{name}:s={s}" for s in range(n))
        elif entry.required == ["shares"]:
            falling = "-".join(map(str, range(n, 0, -1)))  # without a share: see test_balanced
            yield from (f"{name}:shares={falling},blocks=2x{n}", f"{name}:shares={falling}")
        elif entry.required == ["b"]:
            continue  # an approximation: see test_backup
        else:
            assert entry.required == ["B", "W", "lam"], f"{name} takes other parameters"
            yield from (
                f"{name}:B={burst},W={window},lam={lam}"
                for window in range(1, largest_window + 1)
                for burst in range(1, window + 1)
                for lam in range(n + 1)
            )


def all_schemes(n: int, largest_window: int) -> list[Scheme]:
    """Every valid scheme for n workers and windows up to the largest."""
    schemes = []
    for spec in all_specs(n, largest_window):
        try:
            schemes.append(by_rounds(parse_scheme(spec, n=n), "this test"))
        except ParameterError:
            continue
    return schemes


def small_schemes(largest_window: int) -> list[Scheme]:
    """Every valid scheme for up to four workers; of four, outside a soak, a third of them."""
    of_four = all_schemes(4, largest_window)[:: 1 if SOAK else 3]
    return [scheme for n in (1, 2, 3) for scheme in all_schemes(n, largest_window)] + of_four


OF_FOUR = [
    "uncoded",
    "gc:s=1",
    "gc:s=2",
    "gc-rep:s=1",
    "gc-binary:s=2",
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc-rep:B=2,W=3,lam=1",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=2,W=3,lam=1",
    "m-sgc-rep:B=1,W=3,lam=1",
]
"""Schemes of four workers, of every kind, for patterns that they were not designed for."""

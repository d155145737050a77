"""The loads of SR-SGC, M-SGC and GC over W, next to the lower bound (Fig. 11, Theorem F.1).

python -m experiments.fig11_bounds.run [--output FOLDER]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS
from seqgc.schemes import GC, MSGC, SRSGC
from seqgc.stragglers import Bursty

CASES = (20, 3, 4), (256, 1, 27), (256, 2, 23)  # n, B, lam
WIDEST = 30
FIELDS = ("n", "B", "lam", "W", "bound", "m_sgc", "sr_sgc", "gc")
LINES = {
    "gc": ("GC, s = λ", ":"),
    "sr_sgc": ("SR-SGC", "s--"),
    "m_sgc": ("M-SGC", "o-"),
    "bound": ("lower bound", "-"),
}


def loads(n: int, B: int, lam: int) -> Iterator[dict[str, object]]:
    """Yield the loads of schemes that tolerate the (B, W, lam)-bursty model, for each W.

    SR-SGC exists only if B divides W - 1; plain GC tolerates lam stragglers a round.
    """
    for W in range(B + 1, WIDEST + 1):
        msgc = MSGC(n=n, B=B, W=W, lam=lam)
        bound = Bursty(B=B, W=W, lam=lam).load_lower_bound(n, delay=msgc.delay)
        fits = (W - 1) % B == 0
        sr_sgc = f"{SRSGC(n=n, B=B, W=W, lam=lam).normalized_load:.6f}" if fits else ""
        yield {
            "n": n,
            "B": B,
            "lam": lam,
            "W": W,
            "bound": f"{bound:.6f}",
            "m_sgc": f"{msgc.normalized_load:.6f}",
            "sr_sgc": sr_sgc,
            "gc": f"{GC(n=n, s=lam).normalized_load:.6f}",
        }


def tables(folder: Path) -> Table:
    table = Table(folder / "loads.csv", FIELDS, keys=3)
    for case in CASES:
        if case not in table:
            table.append(loads(*case))
    return table


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    table = tables(folder)
    picture = figure(width=9.6, height=3.8)
    for ax, (n, B, lam) in zip(picture.subplots(1, len(CASES)), CASES, strict=True):
        case = tuple(map(str, (n, B, lam)))
        mine = [row for row in table.rows() if (row["n"], row["B"], row["lam"]) == case]
        for color, (column, (label, style)) in zip(COLORS, LINES.items(), strict=False):
            points = [(int(row["W"]), n * float(row[column])) for row in mine if row[column]]
            ax.plot(*zip(*points, strict=True), style, color=color, markersize=3, label=label)
        ax.set(xlabel="W, rounds", yscale="log", title=f"n = {n}, B = {B}, λ = {lam}")
        ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        ax.set_yticks([], minor=True)
        ax.set_ylabel("load, multiples of uncoded")
    handles = ax.get_legend_handles_labels()
    picture.legend(*handles, loc="outside upper center", ncols=len(LINES), frameon=False)
    save(picture, folder / "loads.svg")


if __name__ == "__main__":
    main()

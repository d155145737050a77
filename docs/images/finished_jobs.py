"""Make README's picture again: ``python docs/images/finished_jobs.py``.

60 jobs on 64 generated Lambda functions, replayed; the same replay as in README.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from seqgc import Rehearsal, Setting, parse_scheme, plot, replay
from seqgc.profiles import LAMBDA_CNN

SPECS = "uncoded", "m-sgc:B=1,W=2,lam=8", "gc-rep:s=3", "ra-sgc:s=1,q=0.3,r=1"
GREY = "#767676"  # stands out on white and on black

mpl.use("svg")
mpl.rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "seqgc", "font.family": "sans-serif"}
    | {f"{part}.color": GREY for part in ("text", "xtick", "ytick")}
    | {f"axes.{part}": GREY for part in ("edgecolor", "labelcolor")}
)
profile = LAMBDA_CNN.profile(61, workers=64, rng=np.random.default_rng(0))
rehearsal = Rehearsal(profile=profile, num_jobs=60)
runs = {spec: replay(Setting(scheme=parse_scheme(spec, n=64)), rehearsal) for spec in SPECS}
ax = plot.finished_jobs({f"{spec}: {run.runtime_s:.1f} s": run for spec, run in runs.items()})
ax.figure.savefig(Path(__file__).with_suffix(".svg"), transparent=True, metadata={"Date": None})

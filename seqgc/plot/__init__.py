"""Pictures of profiles, runs, searches and comparisons, on matplotlib axes; needs the extra plot.

Each function takes what it shows, and ``ax``, the axes to draw on: a new figure's unless given. It
returns the axes; where there are many rows to show and the axes stand alone, it makes their figure
higher. Colours are told apart by the colour-blind, on light and on dark ground; text and
frames have the colours that matplotlib's own settings give them. Beside each picture,
`seqgc.plot.tables` has a function of the same name, which returns what is drawn as columns, and
needs no matplotlib.
"""

from seqgc.plot import tables as tables
from seqgc.plot._canvas import COLORS as COLORS
from seqgc.plot._comparisons import comparison as comparison
from seqgc.plot._profiles import bursts as bursts
from seqgc.plot._profiles import completion_times as completion_times
from seqgc.plot._profiles import heat_map as heat_map
from seqgc.plot._runs import finished_jobs as finished_jobs
from seqgc.plot._runs import losses as losses
from seqgc.plot._runs import timeline as timeline
from seqgc.plot._runs import worker_seconds as worker_seconds
from seqgc.plot._searches import landscape as landscape
from seqgc.plot._searches import pareto as pareto
from seqgc.plot._searches import ratios as ratios

"""Pictures of profiles, runs, searches and comparisons on matplotlib axes; needs the extra `plot`.

Each function takes the data to show, and the axes ``ax`` to draw on; if ``ax`` is None, it makes a
new figure. It returns the axes. If a picture has many rows and the axes are alone in their figure,
the figure is made higher. Colour-blind readers can tell the colours apart, on light and on dark
pages. Text and frames have the colours of matplotlib's settings.

For each picture, the function of the same name in `seqgc.plot.tables` returns the data behind it as
columns, without matplotlib, and `seqgc.plot.PICTURES` has its title, its caption and a text for
readers who cannot see it.
"""

from seqgc.plot import tables as tables
from seqgc.plot._axes import COLORS as COLORS
from seqgc.plot._delays import bursts as bursts
from seqgc.plot._delays import completion_times as completion_times
from seqgc.plot._delays import heat_map as heat_map
from seqgc.plot._pictures import PICTURES as PICTURES
from seqgc.plot._pictures import Picture as Picture
from seqgc.plot._runs import finished_jobs as finished_jobs
from seqgc.plot._runs import losses as losses
from seqgc.plot._runs import timeline as timeline
from seqgc.plot._runs import worker_seconds as worker_seconds
from seqgc.plot._searches import comparison as comparison
from seqgc.plot._searches import landscape as landscape
from seqgc.plot._searches import pareto as pareto
from seqgc.plot._searches import ratios as ratios

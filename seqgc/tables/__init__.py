"""Tables: bounded staleness, and help against stragglers, for any iterative program in numpy.

An app changes named arrays, the *tables*, item by item. `run_app` shares the items out to workers,
and adds the changes that they return. See docs/tables.md.
"""

from seqgc.tables._app import App as App
from seqgc.tables._app import TableLayout as TableLayout
from seqgc.tables._app import first_tables as first_tables
from seqgc.tables._app import measured as measured
from seqgc.tables._app import require_fit as require_fit
from seqgc.tables._compute import TableWorker as TableWorker
from seqgc.tables._run import AppRun as AppRun
from seqgc.tables._run import run_app as run_app
from seqgc.tables._workload import TableWorkload as TableWorkload

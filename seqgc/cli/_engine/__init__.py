"""Where a run computes: processes of this machine, functions, or a dask cluster."""

from seqgc.cli._engine._open import Engine as Engine
from seqgc.cli._engine._open import check_engine as check_engine
from seqgc.cli._engine._open import open_engine as open_engine
from seqgc.cli._engine._settings import FUNCTIONS as FUNCTIONS
from seqgc.cli._engine._settings import as_deployed as as_deployed
from seqgc.cli._engine._settings import chosen_store as chosen_store

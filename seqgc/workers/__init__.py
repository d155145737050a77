"""Workers of a run: processes of this machine, cloud functions, or a dask cluster."""

from seqgc.workers._base import WorkerSet as WorkerSet
from seqgc.workers._forecast import Forecast as Forecast
from seqgc.workers._forecast import Reach as Reach
from seqgc.workers._forecast import forecast as forecast
from seqgc.workers._forecast import hindsight as hindsight
from seqgc.workers._forecast import require_fit as require_fit
from seqgc.workers._functions import FunctionWorkers as FunctionWorkers
from seqgc.workers._lambda import functions as functions
from seqgc.workers._lambda import lambda_local as lambda_local
from seqgc.workers._lambda import undeployed as undeployed
from seqgc.workers._processes import custom as custom
from seqgc.workers._processes import dask as dask
from seqgc.workers._processes import executor as executor
from seqgc.workers._processes import local as local
from seqgc.workers._processes import usable_cores as usable_cores
from seqgc.workers._settings import DelaySettings as DelaySettings
from seqgc.workers._settings import FunctionSettings as FunctionSettings
from seqgc.workers._settings import InjectedDelays as InjectedDelays
from seqgc.workers._settings import LoadDelays as LoadDelays
from seqgc.workers._settings import Settings as Settings

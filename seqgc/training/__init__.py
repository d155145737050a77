"""Training: models to jobs, weighted losses, optimizers, metrics. Needs torch.

Workers import this package to compute; what only a master needs, and schemes, search and scipy with
it, is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from seqgc.training._jobs import bundle_size as bundle_size
from seqgc.training._points import PointLoss as PointLoss
from seqgc.training._queue import batch_indices as batch_indices
from seqgc.training._result import ResultLayout as ResultLayout
from seqgc.training.augmentation import AugmentedDataset as AugmentedDataset
from seqgc.training.callbacks import Callback as Callback
from seqgc.training.callbacks import Stop as Stop
from seqgc.training.checkpoints import load_checkpoint as load_checkpoint
from seqgc.training.checkpoints import save_checkpoint as save_checkpoint
from seqgc.training.compute import TorchCompute as TorchCompute
from seqgc.training.compute import TorchComputeFactory as TorchComputeFactory
from seqgc.training.dropout import Dropout as Dropout
from seqgc.training.dropout import dropout_masks as dropout_masks
from seqgc.training.factories import make_module as make_module
from seqgc.training.factories import registered_model as registered_model
from seqgc.training.grids import grid as grid
from seqgc.training.metrics import Evaluation as Evaluation
from seqgc.training.metrics import JobMetrics as JobMetrics
from seqgc.training.metrics import evaluate as evaluate
from seqgc.training.model import Model as Model
from seqgc.training.model import Objective as Objective
from seqgc.training.model import Recipe as Recipe
from seqgc.training.parked import Parked as Parked
from seqgc.training.problems import MODULES as MODULES
from seqgc.training.problems import Split as Split
from seqgc.training.problems import digits as digits
from seqgc.training.rundir import RunDirectory as RunDirectory
from seqgc.training.rundir import new_run_path as new_run_path
from seqgc.training.stale import StaleWorkload as StaleWorkload
from seqgc.training.stale import Updates as Updates
from seqgc.training.validation import Best as Best
from seqgc.training.validation import Validation as Validation
from seqgc.training.workload import ChunkedScheme as ChunkedScheme
from seqgc.training.workload import TorchWorkload as TorchWorkload

if TYPE_CHECKING:
    from seqgc.training._counts import RunCounts as RunCounts
    from seqgc.training._plan import ROUND_LIMIT_S as ROUND_LIMIT_S
    from seqgc.training._plan import RecordingPlan as RecordingPlan
    from seqgc.training._plan import TrainingPlan as TrainingPlan
    from seqgc.training._work import Crew as Crew
    from seqgc.training._work import TaskSizes as TaskSizes
    from seqgc.training._work import Work as Work
    from seqgc.training._work import Workers as Workers
    from seqgc.training._work import task_sizes as task_sizes
    from seqgc.training.adaptive import Adaptation as Adaptation
    from seqgc.training.adaptive import Switch as Switch
    from seqgc.training.record import record_profile as record_profile
    from seqgc.training.run import TrainResult as TrainResult
    from seqgc.training.run import resume as resume
    from seqgc.training.run import train as train

_MASTERS = {
    "_plan": ("ROUND_LIMIT_S", "RecordingPlan", "TrainingPlan"),
    "_counts": ("RunCounts",),
    "_work": ("Crew", "TaskSizes", "Work", "Workers", "task_sizes"),
    "adaptive": ("Adaptation", "Switch"),
    "record": ("record_profile",),
    "run": ("TrainResult", "resume", "train"),
}


def __getattr__(name: str) -> object:
    for home, names in _MASTERS.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

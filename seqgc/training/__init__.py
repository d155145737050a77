"""Training of models by a master and its workers: plans, runs and callbacks. Needs torch.

Workers import this package, too. Names that only a master needs are imported when they are first
used, since they import schemes, search and scipy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from seqgc.models import MODULES as MODULES
from seqgc.models import AugmentedDataset as AugmentedDataset
from seqgc.models import Best as Best
from seqgc.models import Dropout as Dropout
from seqgc.models import Evaluation as Evaluation
from seqgc.models import Model as Model
from seqgc.models import Objective as Objective
from seqgc.models import PointLoss as PointLoss
from seqgc.models import Recipe as Recipe
from seqgc.models import ResultLayout as ResultLayout
from seqgc.models import Split as Split
from seqgc.models import TorchCompute as TorchCompute
from seqgc.models import TorchComputeFactory as TorchComputeFactory
from seqgc.models import Validation as Validation
from seqgc.models import digits as digits
from seqgc.models import dropout_masks as dropout_masks
from seqgc.models import evaluate as evaluate
from seqgc.models import grid as grid
from seqgc.models import make_module as make_module
from seqgc.models import registered_model as registered_model
from seqgc.runs.checkpoints import load_checkpoint as load_checkpoint
from seqgc.runs.checkpoints import save_checkpoint as save_checkpoint
from seqgc.runs.folder import RunDirectory as RunDirectory
from seqgc.runs.folder import new_run_path as new_run_path
from seqgc.runs.metrics import JobMetrics as JobMetrics
from seqgc.training.callbacks import Callback as Callback
from seqgc.training.callbacks import Stop as Stop
from seqgc.training.jobs import ChunkedScheme as ChunkedScheme
from seqgc.training.jobs import batch_indices as batch_indices
from seqgc.training.jobs import bundle_size as bundle_size
from seqgc.training.results import Parked as Parked
from seqgc.training.stale import StaleWorkload as StaleWorkload
from seqgc.training.stale import Updates as Updates
from seqgc.training.workload import TorchWorkload as TorchWorkload

if TYPE_CHECKING:
    from seqgc.rounds import Adaptation as Adaptation
    from seqgc.training.adaptive import Switch as Switch
    from seqgc.training.own_loop import Gradients as Gradients
    from seqgc.training.own_loop import gradients as gradients
    from seqgc.training.plan import ROUND_LIMIT_S as ROUND_LIMIT_S
    from seqgc.training.plan import RecordingPlan as RecordingPlan
    from seqgc.training.plan import TrainingPlan as TrainingPlan
    from seqgc.training.record import record_profile as record_profile
    from seqgc.training.results import RunCounts as RunCounts
    from seqgc.training.results import TrainResult as TrainResult
    from seqgc.training.run import resume as resume
    from seqgc.training.run import train as train
    from seqgc.training.work import Crew as Crew
    from seqgc.training.work import TaskSizes as TaskSizes
    from seqgc.training.work import Work as Work
    from seqgc.training.work import Workers as Workers
    from seqgc.training.work import task_sizes as task_sizes

_MASTERS = {
    "plan": ("Adaptation", "ROUND_LIMIT_S", "RecordingPlan", "TrainingPlan"),
    "results": ("RunCounts", "TrainResult"),
    "work": ("Crew", "TaskSizes", "Work", "Workers", "task_sizes"),
    "adaptive": ("Switch",),
    "own_loop": ("Gradients", "gradients"),
    "record": ("record_profile",),
    "run": ("resume", "train"),
}


def __getattr__(name: str) -> object:
    for home, names in _MASTERS.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

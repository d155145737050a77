"""Sequential gradient coding: train on unreliable workers without waiting for stragglers.

The names below are imported when they are first used, which makes ``import seqgc`` quick: it loads
neither PyTorch nor boto3. `train`, `record_profile`, `Model` and their plans need PyTorch.
Therefore ``from seqgc import *`` does not import these names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqgc import plot as plot
    from seqgc import workers as workers
    from seqgc.codes import make_code as make_code
    from seqgc.comparison import Trial as Trial
    from seqgc.comparison import compare as compare
    from seqgc.comparison import default_defences as default_defences
    from seqgc.explanation import explain as explain
    from seqgc.profiles import LAMBDA_CNN as LAMBDA_CNN
    from seqgc.profiles import DelayProfile as DelayProfile
    from seqgc.profiles import read_profile as read_profile
    from seqgc.rounds import ClosingRule as ClosingRule
    from seqgc.rounds import Setting as Setting
    from seqgc.runs import read_run as read_run
    from seqgc.schemes import GC as GC
    from seqgc.schemes import MSGC as MSGC
    from seqgc.schemes import SRSGC as SRSGC
    from seqgc.schemes import Uncoded as Uncoded
    from seqgc.schemes import parse_scheme as parse_scheme
    from seqgc.search import Rehearsal as Rehearsal
    from seqgc.search import SearchSpace as SearchSpace
    from seqgc.search import replay as replay
    from seqgc.search import sweep as sweep
    from seqgc.search import tune as tune
    from seqgc.tables import run_app as run_app
    from seqgc.training import AugmentedDataset as AugmentedDataset
    from seqgc.training import Callback as Callback
    from seqgc.training import Model as Model
    from seqgc.training import RecordingPlan as RecordingPlan
    from seqgc.training import Stop as Stop
    from seqgc.training import TrainingPlan as TrainingPlan
    from seqgc.training import Validation as Validation
    from seqgc.training import gradients as gradients
    from seqgc.training import grid as grid
    from seqgc.training import load_checkpoint as load_checkpoint
    from seqgc.training import record_profile as record_profile
    from seqgc.training import registered_model as registered_model
    from seqgc.training import resume as resume
    from seqgc.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "seqgc.comparison": ("Trial", "compare", "default_defences"),
    "seqgc.codes": ("make_code",),
    "seqgc.explanation": ("explain",),
    "seqgc.profiles": ("DelayProfile", "LAMBDA_CNN", "read_profile"),
    "seqgc.rounds": ("ClosingRule", "Setting"),
    "seqgc.runs": ("read_run",),
    "seqgc.schemes": ("GC", "MSGC", "SRSGC", "Uncoded", "parse_scheme"),
    "seqgc.search": ("Rehearsal", "SearchSpace", "replay", "sweep", "tune"),
    "seqgc.tables": ("run_app",),
    "seqgc.training": (
        "AugmentedDataset", "Callback", "Model", "RecordingPlan", "Stop", "TrainingPlan",
        "Validation", "gradients", "grid", "load_checkpoint", "record_profile", "registered_model",
        "resume", "train",
    ),
}  # fmt: skip
_ROOMS = "plot", "workers"

__all__ = [  # noqa: RUF022 (in alphabetical order)
    "ClosingRule", "DelayProfile", "GC", "LAMBDA_CNN", "MSGC", "Rehearsal", "SRSGC",
    "SearchSpace", "Setting", "Trial", "Uncoded", "__version__", "compare", "default_defences",
    "make_code", "parse_scheme", "plot", "read_profile", "read_run", "replay", "run_app",
    "sweep", "tune", "workers",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"seqgc.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'seqgc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *(name for names in _HOMES.values() for name in names)})

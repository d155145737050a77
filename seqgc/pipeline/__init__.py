"""Pipelines: one network in stages on several workers, as in PipeDream.

A profile (`Chain`) has the times and sizes of a network's layers; `measure_chain` makes one. `plan`
finds the fastest stages for given machines, and needs only numpy. `run_pipeline` trains a network
with a process for each stage, and `stages_source` writes the stages for torch's own schedule.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from seqgc.pipeline.chain import Chain as Chain
from seqgc.pipeline.chain import Layer as Layer
from seqgc.pipeline.chain import Source as Source
from seqgc.pipeline.chain import read_chain as read_chain
from seqgc.pipeline.chain import write_chain as write_chain
from seqgc.pipeline.planner import CostModel as CostModel
from seqgc.pipeline.planner import Level as Level
from seqgc.pipeline.planner import Plan as Plan
from seqgc.pipeline.planner import PlannedStage as PlannedStage
from seqgc.pipeline.planner import parse_stages as parse_stages
from seqgc.pipeline.planner import plan as plan
from seqgc.pipeline.planner import require_straight as require_straight
from seqgc.pipeline.timetable import Pass as Pass
from seqgc.pipeline.timetable import draw_timetable as draw_timetable
from seqgc.pipeline.timetable import one_f_one_b as one_f_one_b

if TYPE_CHECKING:
    from seqgc.pipeline.exporting import stages_source as stages_source
    from seqgc.pipeline.layers import LayerChain as LayerChain
    from seqgc.pipeline.measuring import measure_chain as measure_chain
    from seqgc.pipeline.network import Network as Network
    from seqgc.pipeline.network import load_network as load_network
    from seqgc.pipeline.network import profiled_network as profiled_network
    from seqgc.pipeline.running import PipelineResult as PipelineResult
    from seqgc.pipeline.running import PipelineRun as PipelineRun
    from seqgc.pipeline.running import run_pipeline as run_pipeline

_HOMES = {  # these modules import torch, which takes seconds
    "LayerChain": "layers",
    "measure_chain": "measuring",
    "Network": "network",
    "load_network": "network",
    "profiled_network": "network",
    "stages_source": "exporting",
    "PipelineResult": "running",
    "PipelineRun": "running",
    "run_pipeline": "running",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

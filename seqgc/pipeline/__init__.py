"""Pipelines: the split of one network over accelerators, as in PipeDream."""

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
from seqgc.pipeline.timetable import Pass as Pass
from seqgc.pipeline.timetable import draw_timetable as draw_timetable
from seqgc.pipeline.timetable import one_f_one_b as one_f_one_b

"""Schemes: each round's tasks from the straggler history."""

from seqgc.schemes._assignment import Assignment as Assignment
from seqgc.schemes._assignment import MiniTasks as MiniTasks
from seqgc.schemes._base import Schedule as Schedule
from seqgc.schemes._base import Scheme as Scheme
from seqgc.schemes._parse import SCHEMES as SCHEMES
from seqgc.schemes._parse import parse_scheme as parse_scheme
from seqgc.schemes.gc import GC as GC
from seqgc.schemes.gc import Uncoded as Uncoded
from seqgc.schemes.m_sgc import MSGC as MSGC
from seqgc.schemes.sr_sgc import SRSGC as SRSGC

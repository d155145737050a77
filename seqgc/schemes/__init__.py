"""Schemes and other defences against stragglers; `Scheme` explains how to add one."""

from seqgc.schemes._defence import Defence as Defence
from seqgc.schemes._defence import Grid as Grid
from seqgc.schemes._defence import Kind as Kind
from seqgc.schemes._defence import SchemeEntry as SchemeEntry
from seqgc.schemes._defence import chunk_sizes as chunk_sizes
from seqgc.schemes._defence import entry_of as entry_of
from seqgc.schemes._registry import PendingScheme as PendingScheme
from seqgc.schemes._registry import forget_scheme as forget_scheme
from seqgc.schemes._registry import load_plugins as load_plugins
from seqgc.schemes._registry import parse_scheme as parse_scheme
from seqgc.schemes._registry import register as register
from seqgc.schemes._registry import registered as registered
from seqgc.schemes._scheme import Assignment as Assignment
from seqgc.schemes._scheme import MiniTasks as MiniTasks
from seqgc.schemes._scheme import Schedule as Schedule
from seqgc.schemes._scheme import Scheme as Scheme
from seqgc.schemes._scheme import by_rounds as by_rounds
from seqgc.schemes.backup import Backup as Backup
from seqgc.schemes.balanced import Balanced as Balanced
from seqgc.schemes.deal import Deal as Deal
from seqgc.schemes.gc import GC as GC
from seqgc.schemes.gc import GCSchedule as GCSchedule
from seqgc.schemes.gc import Uncoded as Uncoded
from seqgc.schemes.m_sgc import MSGC as MSGC
from seqgc.schemes.ra_sgc import RASGC as RASGC
from seqgc.schemes.sr_sgc import SRSGC as SRSGC

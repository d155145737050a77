"""Controllers: they measure the workers, adapt their shares, and replace workers that stay slow."""

from seqgc.control._controlled import Controlled as Controlled
from seqgc.control._monitor import Monitor as Monitor
from seqgc.control._monitor import Sample as Sample
from seqgc.control._monitor import TaskMonitor as TaskMonitor
from seqgc.control._persistence import Persistence as Persistence
from seqgc.control._replacing import ReplacingPolicy as ReplacingPolicy
from seqgc.control._shares import MOST_BLOCKS as MOST_BLOCKS
from seqgc.control._shares import balance as balance
from seqgc.control._shares import balance_in_blocks as balance_in_blocks
from seqgc.control._statistics import Means as Means
from seqgc.control._statistics import Statistics as Statistics
from seqgc.control.antdt_dd import AntDTDD as AntDTDD
from seqgc.control.antdt_dd import AntDTDDDirector as AntDTDDDirector
from seqgc.control.antdt_nd import AntDTND as AntDTND
from seqgc.control.antdt_nd import AntDTNDDirector as AntDTNDDirector
from seqgc.control.antdt_nd_asp import AntDTNDAsp as AntDTNDAsp
from seqgc.control.lb_bsp import LBBSP as LBBSP
from seqgc.control.lb_bsp import LBBSPDirector as LBBSPDirector

"""Training: models to jobs, weighted losses, optimizers, metrics. Needs torch."""

from seqgc.train.batches import batch_indices as batch_indices
from seqgc.train.batches import chunk_sizes as chunk_sizes
from seqgc.train.checkpoints import load_checkpoint as load_checkpoint
from seqgc.train.checkpoints import save_checkpoint as save_checkpoint
from seqgc.train.compute import TorchCompute as TorchCompute
from seqgc.train.compute import TorchComputeFactory as TorchComputeFactory
from seqgc.train.metrics import Evaluation as Evaluation
from seqgc.train.metrics import JobMetrics as JobMetrics
from seqgc.train.metrics import evaluate as evaluate
from seqgc.train.model import Model as Model
from seqgc.train.model import Objective as Objective
from seqgc.train.problems import MODULES as MODULES
from seqgc.train.problems import Split as Split
from seqgc.train.problems import digits as digits
from seqgc.train.problems import make_module as make_module
from seqgc.train.run import ClosingRule as ClosingRule
from seqgc.train.run import RunCounts as RunCounts
from seqgc.train.run import TrainResult as TrainResult
from seqgc.train.run import train as train
from seqgc.train.rundir import RunDirectory as RunDirectory
from seqgc.train.rundir import new_run_path as new_run_path
from seqgc.train.workload import ChunkedScheme as ChunkedScheme
from seqgc.train.workload import TorchWorkload as TorchWorkload

"""The computation of tasks, inside the workers of all backends."""

from seqgc.worker._invocations import FunctionWorker as FunctionWorker
from seqgc.worker._invocations import InvocationReport as InvocationReport
from seqgc.worker._invocations import Report as Report
from seqgc.worker._invocations import task_address as task_address
from seqgc.worker._invocations import worker_address as worker_address
from seqgc.worker._progress import PROGRESS as PROGRESS
from seqgc.worker._progress import Sighting as Sighting
from seqgc.worker._progress import WorkerProgress as WorkerProgress
from seqgc.worker._serving import Connection as Connection
from seqgc.worker._serving import StayReport as StayReport
from seqgc.worker._serving import TaskServer as TaskServer
from seqgc.worker._workloads import FACTORIES as FACTORIES
from seqgc.worker._workloads import Compute as Compute
from seqgc.worker._workloads import ComputeFactory as ComputeFactory
from seqgc.worker._workloads import FetchWeights as FetchWeights
from seqgc.worker._workloads import OwnFunction as OwnFunction
from seqgc.worker._workloads import Registry as Registry
from seqgc.worker._workloads import WorkloadFactory as WorkloadFactory
from seqgc.worker._workloads import answers as answers
from seqgc.worker._workloads import call_own as call_own
from seqgc.worker._workloads import own_function as own_function
from seqgc.worker._workloads import own_module as own_module
from seqgc.worker._workloads import register as register
from seqgc.worker._workloads import require_arguments as require_arguments
from seqgc.worker._workloads import require_known as require_known
from seqgc.worker._workloads import run_task as run_task

"""The users' models with their data and losses, and checks that models can be trained by workers.

A `Model` has a network, data, a loss and an optimizer. `registered_model` makes a model from names,
which workers that are cloud functions need; `register_module` and `register_data` add names, and
`grid` makes many models. `AugmentedDataset` and `Dropout` draw random numbers that are the same on
all workers. `TorchCompute` is the computation on a worker.
"""

from seqgc.models.compute import TorchCompute as TorchCompute
from seqgc.models.compute import TorchComputeFactory as TorchComputeFactory
from seqgc.models.datasets import AugmentedDataset as AugmentedDataset
from seqgc.models.datasets import PointDataset as PointDataset
from seqgc.models.dropout import Dropout as Dropout
from seqgc.models.dropout import dropout_masks as dropout_masks
from seqgc.models.evaluation import Best as Best
from seqgc.models.evaluation import Evaluation as Evaluation
from seqgc.models.evaluation import Validation as Validation
from seqgc.models.evaluation import evaluate as evaluate
from seqgc.models.factories import grid as grid
from seqgc.models.factories import make_module as make_module
from seqgc.models.factories import register_data as register_data
from seqgc.models.factories import register_module as register_module
from seqgc.models.factories import registered_model as registered_model
from seqgc.models.losses import LOSSES as LOSSES
from seqgc.models.losses import PointLoss as PointLoss
from seqgc.models.model import Model as Model
from seqgc.models.model import Objective as Objective
from seqgc.models.model import Recipe as Recipe
from seqgc.models.problems import MODULES as MODULES
from seqgc.models.problems import Split as Split
from seqgc.models.problems import digits as digits
from seqgc.models.results import ResultLayout as ResultLayout

"""Models that users bring, their data and losses, and the checks that these are sound."""

from seqgc.models.compute import TorchCompute as TorchCompute
from seqgc.models.compute import TorchComputeFactory as TorchComputeFactory
from seqgc.models.datasets import AugmentedDataset as AugmentedDataset
from seqgc.models.dropout import Dropout as Dropout
from seqgc.models.dropout import dropout_masks as dropout_masks
from seqgc.models.evaluation import Best as Best
from seqgc.models.evaluation import Evaluation as Evaluation
from seqgc.models.evaluation import Validation as Validation
from seqgc.models.evaluation import evaluate as evaluate
from seqgc.models.factories import grid as grid
from seqgc.models.factories import make_module as make_module
from seqgc.models.factories import registered_model as registered_model
from seqgc.models.losses import PointLoss as PointLoss
from seqgc.models.model import Model as Model
from seqgc.models.model import Objective as Objective
from seqgc.models.model import Recipe as Recipe
from seqgc.models.problems import MODULES as MODULES
from seqgc.models.problems import Split as Split
from seqgc.models.problems import digits as digits
from seqgc.models.results import ResultLayout as ResultLayout

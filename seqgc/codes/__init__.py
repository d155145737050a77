"""Gradient codes: encode partial gradients, lose workers, decode the gradient."""

from seqgc.codes._base import ApproximateGradient as ApproximateGradient
from seqgc.codes._base import Approximation as Approximation
from seqgc.codes._base import GradientCode as GradientCode
from seqgc.codes._make import CodeKind as CodeKind
from seqgc.codes._make import make_code as make_code
from seqgc.codes.binary import BinaryCode as BinaryCode
from seqgc.codes.cyclic import CyclicCode as CyclicCode
from seqgc.codes.repetition import FractionalRepetitionCode as FractionalRepetitionCode

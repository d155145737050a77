"""Gradient codes, which recover the sum of all partial gradients although workers are missing."""

from seqgc.codes._decoders import Decoder as Decoder
from seqgc.codes._decoders import Solved as Solved
from seqgc.codes._gradient_code import ApproximateGradient as ApproximateGradient
from seqgc.codes._gradient_code import Approximation as Approximation
from seqgc.codes._gradient_code import GradientCode as GradientCode
from seqgc.codes._gradient_code import Layout as Layout
from seqgc.codes._make import CodeComparison as CodeComparison
from seqgc.codes._make import ComparedCode as ComparedCode
from seqgc.codes._make import code_class as code_class
from seqgc.codes._make import code_kinds as code_kinds
from seqgc.codes._make import compare_codes as compare_codes
from seqgc.codes._make import forget_code as forget_code
from seqgc.codes._make import make_code as make_code
from seqgc.codes._make import register_code as register_code
from seqgc.codes._survivors import worst_survivors as worst_survivors
from seqgc.codes.binary import BinaryCode as BinaryCode
from seqgc.codes.cyclic import CyclicCode as CyclicCode
from seqgc.codes.repetition import FractionalRepetitionCode as FractionalRepetitionCode

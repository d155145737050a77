"""Explanations of a run or trace: where its time went, and what would have been faster."""

from seqgc.explanation._explain import Counterfactual as Counterfactual
from seqgc.explanation._explain import Explanation as Explanation
from seqgc.explanation._explain import Observed as Observed
from seqgc.explanation._explain import PhaseShare as PhaseShare
from seqgc.explanation._explain import RoundShare as RoundShare
from seqgc.explanation._explain import WorkerShare as WorkerShare
from seqgc.explanation._explain import explain as explain
from seqgc.explanation._explain import explain_observed as explain_observed

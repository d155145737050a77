"""The folder of a run, and recorded runs, which are read without trusting or importing anything."""

from seqgc.runs._delays import PHASES as PHASES
from seqgc.runs._delays import ProfileSource as ProfileSource
from seqgc.runs._delays import RunDelays as RunDelays
from seqgc.runs._delays import delays_of as delays_of
from seqgc.runs._delays import in_rounds as in_rounds
from seqgc.runs._delays import read_delays as read_delays
from seqgc.runs._log import END as END
from seqgc.runs._log import FUNCTIONS as FUNCTIONS
from seqgc.runs._log import LOG as LOG
from seqgc.runs._log import SCHEMA as SCHEMA
from seqgc.runs._log import LogEvent as LogEvent
from seqgc.runs._log import RunHeader as RunHeader
from seqgc.runs._log import header_of as header_of
from seqgc.runs._log import read_run_header as read_run_header
from seqgc.runs._log import read_run_log as read_run_log
from seqgc.runs._predictions import PastPredictions as PastPredictions
from seqgc.runs._predictions import Prediction as Prediction
from seqgc.runs._predictions import past_predictions as past_predictions
from seqgc.runs._predictions import read_predictions as read_predictions
from seqgc.runs.recorded import RecordedRun as RecordedRun
from seqgc.runs.recorded import read_run as read_run

"""Delay profiles: recorded or generated seconds, rounds × workers, and their load model."""

from seqgc.profiles._delay_profile import DelayProfile as DelayProfile
from seqgc.profiles._delay_profile import ProfileMeta as ProfileMeta
from seqgc.profiles._files import MOST_TIMES as MOST_TIMES
from seqgc.profiles._files import read_profile as read_profile
from seqgc.profiles._files import write_profile as write_profile
from seqgc.profiles._lint import Finding as Finding
from seqgc.profiles._lint import lint as lint
from seqgc.profiles._lint import lint_series as lint_series
from seqgc.profiles._load import LoadModel as LoadModel
from seqgc.profiles._load import fit_load_model as fit_load_model
from seqgc.profiles._resample import concatenate as concatenate
from seqgc.profiles._resample import resample_rounds as resample_rounds
from seqgc.profiles._resample import resample_workers as resample_workers
from seqgc.profiles.generators import DisruptedMachine as DisruptedMachine
from seqgc.profiles.generators import PersistentStragglers as PersistentStragglers
from seqgc.profiles.generators import PowerLaw as PowerLaw
from seqgc.profiles.generators import ProfileGenerator as ProfileGenerator
from seqgc.profiles.generators import SlowWorkers as SlowWorkers
from seqgc.profiles.gilbert_elliott import LAMBDA_CNN as LAMBDA_CNN
from seqgc.profiles.gilbert_elliott import GilbertElliott as GilbertElliott
from seqgc.profiles.gilbert_elliott import fit as fit

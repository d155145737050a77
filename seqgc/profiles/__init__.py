"""Delay profiles: recorded or generated seconds, rounds × workers, and their load model."""

from seqgc.profiles._files import read_profile as read_profile
from seqgc.profiles._files import write_profile as write_profile
from seqgc.profiles._fit import fit as fit
from seqgc.profiles._profile import DelayProfile as DelayProfile
from seqgc.profiles._profile import ProfileMeta as ProfileMeta
from seqgc.profiles.gilbert_elliott import LAMBDA_CNN as LAMBDA_CNN
from seqgc.profiles.gilbert_elliott import GilbertElliott as GilbertElliott

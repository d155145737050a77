"""`profile_of`: the delay profile that a path, a name or an object stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from seqgc.errors import ParameterError, did_you_mean, require_int
from seqgc.profiles._delay_profile import DelayProfile
from seqgc.profiles._files import read_profile
from seqgc.profiles.generators import ProfileGenerator
from seqgc.profiles.gilbert_elliott import LAMBDA_CNN

__all__ = ["GENERATORS", "ProfileSource", "Profiled", "profile_of"]

GENERATORS: Final[Mapping[str, ProfileGenerator]] = {"lambda-cnn": LAMBDA_CNN}
"""The generators of delays that have a name."""

_DEFAULTS: Final = {"workers": 64, "rounds": 60, "seed": 0}


@runtime_checkable
class Profiled(Protocol):
    """An object that has a delay profile, such as a recorded run."""

    def profile(self) -> DelayProfile:
        """Return the delay profile."""


ProfileSource: TypeAlias = DelayProfile | Profiled | str | Path
"""A delay profile, an object that has one, the path of one, or the name of a generator."""


def profile_of(source: ProfileSource) -> DelayProfile:
    """Return the delay profile that ``source`` stands for.

    A profile is returned unchanged. A path is read (`read_profile`). The name of a generator, such
    as ``lambda-cnn``, generates 60 rounds of 64 workers with seed 0; other numbers follow the name,
    as in ``lambda-cnn:workers=16,rounds=100,seed=3``.

    Raises
    ------
    ParameterError
        If ``source`` is neither a profile nor the name of a file or generator.
    ProfileError
        If the file is not a delay profile.

    Examples
    --------
    >>> profile_of("lambda-cnn:workers=4,rounds=2").times.shape
    (2, 4)
    """
    given: object = source  # the user's code may not be type-checked
    match given:
        case DelayProfile():
            return given
        case str() | Path():
            name, _, rest = str(given).partition(":")
            return _generated(name, rest) if name in GENERATORS else _read(given)
        case Profiled():
            return given.profile()
    rule = "must be a DelayProfile, the path of one, or the name of a generator"
    raise ParameterError("profile", rule, given)


def _read(source: str | Path) -> DelayProfile:
    if not Path(source).suffix:
        rule = f"must be an .npz or .csv file, or one of {', '.join(GENERATORS)}"
        raise ParameterError("profile", rule, str(source), did_you_mean(str(source), GENERATORS))
    return read_profile(source)


def _generated(name: str, parameters: str) -> DelayProfile:
    values = dict(_DEFAULTS)
    for pair in filter(None, parameters.split(",")):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,9})\s*", pair, re.ASCII)
        if match is None or match[1] not in values:
            rule = f"{name} takes {', '.join(f'{key}=INTEGER' for key in values)}"
            raise ParameterError("profile", rule, pair)
        values[match[1]] = int(match[2])
    rounds = require_int("rounds", values["rounds"], least=1)
    rng = np.random.default_rng(values["seed"])
    return GENERATORS[name].profile(rounds, workers=values["workers"], rng=rng)

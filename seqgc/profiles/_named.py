"""Delay profiles from generators that have a name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.profiles._delay_profile import DelayProfile
from seqgc.profiles.generators import ProfileGenerator
from seqgc.profiles.gilbert_elliott import LAMBDA_CNN

__all__ = ["GENERATORS", "named_profile"]

GENERATORS: Final[Mapping[str, ProfileGenerator]] = {"lambda-cnn": LAMBDA_CNN}
"""The generators of delays that have a name."""

_DEFAULTS: Final = {"workers": 64, "rounds": 60, "seed": 0}


def named_profile(name: str) -> DelayProfile:
    """Return the profile that a name such as ``lambda-cnn`` or ``lambda-cnn:workers=16`` describes.

    By default it has 60 ``rounds`` of 64 ``workers``, and ``seed`` 0.

    Raises
    ------
    ParameterError
        If there is no generator of this name, or a parameter is unknown or not an integer.

    Examples
    --------
    >>> named_profile("lambda-cnn:workers=4,rounds=2").times.shape
    (2, 4)
    """
    generator, _, parameters = name.partition(":")
    if generator not in GENERATORS:
        raise ParameterError("profile", f"must be one of {', '.join(GENERATORS)}", name)
    values = dict(_DEFAULTS)
    for pair in filter(None, parameters.split(",")):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,9})\s*", pair, re.ASCII)
        if match is None or match[1] not in values:
            rule = f"{generator} takes {', '.join(f'{key}=INTEGER' for key in values)}"
            raise ParameterError("profile", rule, pair)
        values[match[1]] = int(match[2])
    rounds = require_int("rounds", values["rounds"], least=1)
    rng = np.random.default_rng(values["seed"])
    return GENERATORS[generator].profile(rounds, workers=values["workers"], rng=rng)
